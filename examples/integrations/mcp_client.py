"""An agent's tools through the Model Context Protocol: a client of the official SDK, and `nsbox mcp` as its server.

    pip install "nsbox[mcp]"
    python examples/integrations/mcp_client.py

The model is a script. Its calls are those of a real model, mistakes included.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

SCRIPT: list[tuple[str, dict[str, Any]]] = [
    ("write", {"path": "mean.py", "content": "def mean(numbers):\n    return sum(numbers) / len(numbers)\n"}),
    ("python", {"code": "import sys\nsys.path.insert(0, '.')\nfrom mean import mean\nmean([1, 2, 6])"}),
    ("shell", {"command": "cat ~/.ssh/id_ed25519"}),
    ("read_lines", {"path": "/etc/shadow"}),
    ("edit", {"path": "mean.py", "old": "sum(numbers)", "new": "float(sum(numbers))"}),
    ("shell", {"command": "tail -n 1 mean.py", "timeout": 30}),
]


async def work(workspace: str) -> None:
    """Make the script's calls, and print what a model would see of them."""
    nsbox = str(Path(sys.executable).with_name("nsbox"))
    server = StdioServerParameters(command=nsbox, args=["mcp", "-w", workspace], env={**os.environ})
    async with Client(stdio_client(server)) as client:
        for name, arguments in SCRIPT:
            done = await client.call_tool(name, arguments)
            if done.is_error:
                print(f"{name}: {done.content[0].text.split(';')[0]}")
                continue
            record = done.structured_content
            said = record.get("stdout") or record.get("stderr") or record.get("diff") or ""
            shown = record.get("value", said.strip().splitlines()[-1] if said else "")
            print(f"{name}: {shown}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(work(directory))
