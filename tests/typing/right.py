"""Uses of nsbox that type checkers accept, with the types that they find. Not to be run."""

import asyncio.subprocess
import subprocess
from typing import Any, Literal, assert_type

import nsbox
import nsbox.asyncio


def first(p: nsbox.Popen[str]) -> str:
    return nsbox.check_output(["x"], text=True)


policy = nsbox.Policy.workspace(
    ".", network="host", shell_path="/bin/sh", read=["/opt"], env={"A": "b"}, limits=nsbox.Limits(cpu_seconds=1)
)
policy = policy.with_(network="none", deny=[".env"], tmp_size="64M")
policy = policy.with_(network="public", limits=nsbox.Limits.sensible(processes=20, file_size="1G", cpus=None))
policy = nsbox.Policy.workspace(".", network=["api.example:443", "!gist.example"])
policy = nsbox.Policy.layers(nsbox.RoBind("/", "/"), network=("api.example",))
policy = policy.with_(network=nsbox.Network(allow=["*.api.example"], deny=("x.api.example",), tls="off", bytes="1G"))
policy = nsbox.Policy(network=nsbox.Network(allow=("a.example",), private=True, connections=3))
assert_type(nsbox.Policy.host(nested=True), nsbox.Policy)
assert_type(nsbox.Policy.layers(nsbox.RoBind("/", "/"), unshare={"net"}, hostname="box"), nsbox.Policy)

assert_type(nsbox.run(["x"], text=True).stdout, str)
assert_type(nsbox.run(["x"], capture_output=True, timeout=5, check=True).stderr, bytes)
assert_type(nsbox.run("x", shell=True, encoding="utf-8", policy=policy, cwd="/"), subprocess.CompletedProcess[str])
assert_type(nsbox.run(["x"], errors="replace", input="y").stdout, str)
assert_type(nsbox.run(["x"], universal_newlines=True).stdout, str)
assert_type(nsbox.check_output(["x"], input=b"y"), bytes)
assert_type(nsbox.call(["x"], timeout=5, policy=policy), int)
assert_type(nsbox.check_call(args=["x"], stdout=nsbox.DEVNULL), int)


def chosen(text: bool) -> None:
    assert_type(nsbox.run(["x"], text=text).stdout, Any)


assert_type(nsbox.Popen(["x"], text=True), nsbox.Popen[str])
assert_type(nsbox.Popen(["x"], stdout=nsbox.PIPE, kill_on_exit=False), nsbox.Popen[bytes])
with nsbox.Popen(["x"], universal_newlines=True, stdin=nsbox.PIPE) as p:
    assert_type(p, nsbox.Popen[str])
    assert_type(p.communicate(), tuple[str, str])
    assert_type(p.wait(timeout=1), int)
    assert_type(p.sandbox.backend, str)
stdlibs: subprocess.Popen[bytes] = nsbox.Popen(["x"])

with nsbox.Sandbox(policy) as box, box.session() as session:
    assert_type(box.run(["x"], text=True).stdout, str)
    assert_type(session.check_output("x"), bytes)
    assert_type(box.Popen(["x"], encoding="utf-8"), nsbox.Popen[str])
    assert_type(box.shell("x", timeout=5, shell_path="/bin/sh").shell, str | None)
    assert_type(box.shell("x", cancel=nsbox.CancelToken(), on_output=lambda event: print(event.text)).cancelled, bool)
    for event in box.stream(["x"], open_stdin=True, pty=(24, 80), timeout=5):
        assert_type(event, nsbox.StreamEvent)
        assert_type(event.result, nsbox.ToolResult | None)
    job = session.background("x", max_output="1M")
    assert_type(job.output(since=0, wait=1.5), nsbox.JobOutput)
    assert_type(job.kill(), nsbox.ToolResult)
    published = box.publish(3000, "127.0.0.1:8080")
    assert_type(published, nsbox.Published)
    assert_type(session.publish(80).address, tuple[str, int] | str)
    assert_type(box.Popen(["x"]).sandbox.network.events, tuple[nsbox.NetworkEvent, ...])


def once(request: nsbox.NetworkRequest) -> bool:
    return request.port == 443


async def always(request: nsbox.NetworkRequest) -> Literal["always"]:
    return "always"


async def never(request: nsbox.NetworkRequest) -> Literal["always", "never"]:
    return "never"


def hear(event: nsbox.NetworkEvent) -> None:
    print(event.to_json())


nsbox.Sandbox(policy, on_connect=once, on_network=hear)
nsbox.Sandbox(policy, on_connect=never)
nsbox.run(["x"], policy=policy, on_connect=always)
nsbox.Popen(["x"], policy=policy, on_network=hear)
nsbox.call(["x"], on_connect=once)


async def streams(box: nsbox.Sandbox, policy: nsbox.Policy | nsbox.Sandbox) -> None:
    process = await nsbox.asyncio.create_subprocess_exec(
        "x", b"y", stdin=nsbox.PIPE, stdout=nsbox.asyncio.PIPE, limit=1024, policy=policy, cwd="/", kill_on_exit=True
    )
    assert_type(process, nsbox.asyncio.Process)
    same: asyncio.subprocess.Process = process
    assert_type(await same.communicate(b"z"), tuple[bytes, bytes])
    assert_type(await process.wait(), int)
    assert_type(process.returncode, int | None)
    assert_type(process.stdout, asyncio.StreamReader | None)
    assert_type(process.sandbox.backend, str)
    async with nsbox.AsyncSandbox(nsbox.Policy.host(), stock=1) as asynchronous, await asynchronous.session() as shared:
        assert_type(await asynchronous.shell("x", timeout=5, check=True), nsbox.ToolResult)
        async for event in shared.stream("x", input=b"y"):
            assert_type(event.data, bytes)
        job = await asynchronous.background(["x"])
        assert_type(job, nsbox.AsyncJob)
        assert_type(await job.output(), nsbox.JobOutput)
    line = await nsbox.asyncio.create_subprocess_shell("x", nsbox.PIPE, shell=True, pty=(24, 80), env={"A": "b"})
    assert_type(line, nsbox.asyncio.Process)
    assert_type(await box.create_subprocess_exec("x", "y", stdout=nsbox.PIPE, text=False), nsbox.asyncio.Process)
    assert_type(await box.create_subprocess_shell("x", limit=10, bufsize=0), nsbox.asyncio.Process)
    assert_type(nsbox.asyncio.PIPE, int)
    await nsbox.asyncio.create_subprocess_exec("x", on_connect=always)
