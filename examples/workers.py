"""Workers with a sandbox of named paths from a YAML (or JSON) file, that tools can ask, and that can pass work on.

python examples/workers.py
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nsbox import AccessError, Policy, PolicyError, Sandbox

WORKER = {
    "sandbox": {
        "paths": {
            "portfolio": {"root": "./portfolio", "mode": "rw", "suffixes": [".md", ".pdf"], "max_file_bytes": 1000},
            "pipeline": {"root": "./pipeline", "mode": "ro", "suffixes": [".pdf"]},
            "framework": {"root": "./framework", "mode": "ro"},
        },
        "network": False,
        "require_os_sandbox": True,
    }
}


def make_worker(root: Path) -> Path:
    for name, text in {
        "portfolio/a.md": "# a\n",
        "portfolio/b.pdf": "%PDF",
        "portfolio/c.exe": "MZ",
        "pipeline/in.pdf": "%PDF in",
        "framework/readme.txt": "read me",
        "elsewhere/secret": "secret",
    }.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    (root / "portfolio/big.md").write_text("x" * 1001)
    (root / "worker.json").write_text(json.dumps(WORKER))
    return root / "worker.json"


def refusal(call: object, *args: object, **options: object) -> str:
    """Return what the refusal of a call says; "" if it isn't refused."""
    try:
        call(*args, **options)  # type: ignore[operator]
    except (AccessError, PolicyError) as error:
        return str(error)
    return ""


def queries(box: Sandbox, root: Path) -> Iterator[tuple[str, bool]]:
    yield "portfolio can be read and written", box.can_read("portfolio/a.md") and box.can_write("portfolio/new.md")
    yield "pipeline can be read, not written", box.can_read("pipeline/in.pdf") and not box.can_write("pipeline/in.pdf")
    yield "nothing else is there", not box.can_read("elsewhere/secret") and not box.can_read("../")
    yield "paths are resolved", box.resolve("portfolio/../pipeline/in.pdf") == root / "pipeline/in.pdf"
    told = refusal(box.resolve, "elsewhere/secret")
    yield "refusals name what can be read", all(f"{root}/{name}" in told for name in WORKER["sandbox"]["paths"])
    told = refusal(box.resolve, "pipeline/new.pdf", write=True)
    yield "and what can be written", told.endswith(f"writable: {root}/portfolio")
    yield "suffixes are told", refusal(box.check_suffix, "portfolio/c.exe").endswith(".md, .pdf")
    yield "sizes are told", "1001 bytes; portfolio takes 1000 at most" in refusal(box.check_size, "portfolio/big.md")


def tools(box: Sandbox) -> Iterator[tuple[str, bool]]:
    yield "read", box.read("portfolio/a.md", max_chars=3) == "# a"
    box.write("portfolio/new.md", "new")
    yield "write", box.read("portfolio/new.md") == "new"
    yield "list", box.list_files("portfolio", "*.md") == ["a.md", "big.md", "new.md"]
    yield (
        "read asks for the suffix and the size",
        bool(refusal(box.read, "portfolio/c.exe") and refusal(box.read, "portfolio/big.md")),
    )
    yield (
        "write asks for the mode, the suffix and the size",
        bool(
            refusal(box.write, "pipeline/x.pdf", "x")
            and refusal(box.write, "portfolio/x.txt", "x")
            and refusal(box.write, "portfolio/x.md", "x" * 1001)
        ),
    )
    yield "/etc/passwd is none of its business", "readable: " in refusal(box.read, "/etc/passwd")


def shell(box: Sandbox, root: Path) -> Iterator[tuple[str, bool]]:
    yield "commands start where the file is", box.shell("ls").stdout == "framework\npipeline\nportfolio\n"
    yield "the kernel keeps to the boundaries", box.shell(f"cat {root}/elsewhere/secret").returncode != 0
    failed = box.shell("echo x > pipeline/x.pdf")
    yield "a failure says what can be written", f"writable: {root}/portfolio" in str(failed.why[0])
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    code = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=5)"
    yield "no network reaches the host", box.exec("python3", ["-I", "-c", code]).returncode != 0
    socket.create_connection(("127.0.0.1", port)).close()  # which is there
    listener.close()
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
    yield (
        "and it is said that it is off",
        [hint.kind for hint in box.exec("python3", ["-I", "-c", code]).why] == ["network"],
    )


def delegation(box: Sandbox, root: Path) -> Iterator[tuple[str, bool]]:
    policy = box.policy
    attached = box.attach(["portfolio/a.md"])
    yield (
        "attachments come from the sandbox",
        attached[0].data == b"# a\n" and bool(refusal(box.attach, ["elsewhere/secret"])),
    )
    child = policy.child(write=[], read=[root / "pipeline"], attach=["portfolio/a.md"])
    with Sandbox(child) as other:
        yield (
            "a child has its own boundaries",
            not other.can_read("/" + str(root / "portfolio/b.pdf")) and not other.list_writable(),
        )
        yield "and what was attached", other.shell(f"cat {root}/portfolio/a.md").stdout == "# a\n"
        yield "to read only", other.shell(f"echo x > {root}/portfolio/a.md").returncode != 0
    yield "it can't have more", "outside of what the parent sees" in refusal(policy.child, read=[root / "elsewhere"])
    yield "nor the network", refusal(policy.child, network="host") != ""
    yield "boundaries don't change by themselves", Policy.load(root / "worker.json") == policy


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="worker-") as directory:
        root = Path(os.path.realpath(directory))
        failed = 0
        with Sandbox.load(make_worker(root)) as box:
            for promises in (queries(box, root), tools(box), shell(box, root), delegation(box, root)):
                for promise, holds in promises:
                    print("ok " if holds else "NOT", promise)
                    failed += not holds
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
