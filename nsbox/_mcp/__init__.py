"""The MCP server of `nsbox mcp`: an agent's tools for any client of the Model Context Protocol. Needs the extra "mcp".

server.py answers requests with the official SDK, wishes.py says what the operator allows. calls.py carries out calls:
how many run at once, progress, cancelling. tools.py describes the tools, outcome.py makes results of answers.
workspace.py has the Sandbox of a connection; roots.py makes its policy from the operator's and the client's roots.
questions.py asks the client's user about hosts, log.py tells the client what happens. stdio.py has the messages.
"""
