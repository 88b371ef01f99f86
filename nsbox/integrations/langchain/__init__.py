"""LangChain: an execution policy for ShellToolMiddleware, whose shell runs in a sandbox; and nsbox's tools for agents.

with SandboxExecutionPolicy(nsbox.Policy.workspace("repo")) as policy:
    agent = create_agent(model, middleware=[ShellToolMiddleware("repo", execution_policy=policy)])
    agent.invoke(...)
"""

from nsbox.integrations.langchain.policy import SandboxExecutionPolicy
from nsbox.integrations.langchain.tools import tools

__all__ = ["SandboxExecutionPolicy", "tools"]
