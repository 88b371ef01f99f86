"""Run a notebook that you don't trust: its kernel sees its own directory, and has no network.

python examples/integrations/jupyter.py
"""

import asyncio
import os
import tempfile

import nbformat
from nbclient import NotebookClient

from nsbox.integrations.jupyter import install

CELLS = [
    "open('result.txt', 'w').write('made inside')",
    "open('/etc/shadow').read()",
    "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)",
]

with tempfile.TemporaryDirectory() as place:
    install("contained", prefix=place)
    os.environ["JUPYTER_PATH"] = os.path.join(place, "share/jupyter")
    directory = os.path.join(place, "notebook")
    os.mkdir(directory)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    where = {"metadata": {"path": directory}}
    client = NotebookClient(
        notebook, kernel_name="contained", allow_errors=True, timeout=300, startup_timeout=300, resources=where
    )
    asyncio.run(client.async_execute())
    for cell in notebook.cells:
        output = cell.outputs[0]
        print(output.get("evalue") or output["data"]["text/plain"])
    with open(os.path.join(directory, "result.txt")) as file:
        print("result.txt:", file.read())
