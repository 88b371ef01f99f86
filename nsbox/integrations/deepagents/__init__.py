"""Deep Agents: a backend whose commands and file tools work in a sandbox.

with SandboxBackend(nsbox.Policy.workspace("repo")) as backend:
    agent = create_deep_agent(model, backend=backend)
    agent.invoke(...)
"""

from nsbox.integrations.deepagents.backend import SandboxBackend

__all__ = ["SandboxBackend"]
