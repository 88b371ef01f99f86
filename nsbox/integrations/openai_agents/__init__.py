"""OpenAI Agents SDK: a sandbox client, whose sessions are nsbox's tasks.

client = NsboxSandboxClient()
agent = SandboxAgent(name="coder", instructions="...", default_manifest=Manifest(...))
await Runner.run(agent, "...", run_config=RunConfig(sandbox=SandboxRunConfig(client=client)))
"""

from nsbox.integrations.openai_agents.client import NsboxSandboxClient, NsboxSandboxClientOptions
from nsbox.integrations.openai_agents.session import NsboxSandboxSession, NsboxSandboxSessionState

__all__ = ["NsboxSandboxClient", "NsboxSandboxClientOptions", "NsboxSandboxSession", "NsboxSandboxSessionState"]
