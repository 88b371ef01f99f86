"""Uses of nsbox that are errors, one a line. Not to be run."""

import nsbox
import nsbox.asyncio

policy = nsbox.Policy.workspace(".")

# here they begin
nsbox.run(["x"], timout=5)
nsbox.run(["x"], polcy=policy)
nsbox.Popen(["x"], kill_on_exti=True)
nsbox.check_output(["x"], txt=True)
nsbox.call(["x"], timeot=3)
nsbox.check_call(["x"], stdoot=3)
nsbox.Policy.workspace(".", netwrk="host")
nsbox.Policy.workspace(".", network="hots")
nsbox.Policy.workspace(".", network="api.example:443")
nsbox.Policy.workspace(".", network=[443])
nsbox.Network(allow=["api.example"], tls="on")
nsbox.Policy.host(seccmp="off")
nsbox.Policy.layers(hostnam="x")
policy.with_(shell="/bin/sh")
number: int = nsbox.run(["x"], text=True).stdout
words: list[str] = nsbox.check_output(["x"])
nsbox.Sandbox(policy).run(["x"], timout=5)
nsbox.Sandbox(policy).shell("x", timout=5)
nsbox.Sandbox(policy).check_output(["x"], policy=policy)
nsbox.Popen(["x"], -1)
nsbox.Sandbox(policy, on_connect=3)
nsbox.Sandbox(policy, on_connect=lambda request: "yes")
nsbox.Sandbox(policy).run(["x"], on_connect=print)
nsbox.Sandbox(policy).publish("3000")
nsbox.asyncio.create_subprocess_exec("x", stdot=nsbox.PIPE)
nsbox.asyncio.create_subprocess_exec("x", polcy=policy)
nsbox.asyncio.create_subprocess_exec("x", 3)
nsbox.asyncio.create_subprocess_exec("x", text=True)
nsbox.asyncio.create_subprocess_exec("x", shell=True)
nsbox.asyncio.create_subprocess_shell("x", "y")
nsbox.asyncio.create_subprocess_exec("x", timeout=5)
nsbox.asyncio.create_subprocess_shell(["x"])
nsbox.asyncio.create_subprocess_shell("x", shell=False)
nsbox.asyncio.create_subprocess_shell("x", encoding="utf-8")
nsbox.Sandbox(policy).create_subprocess_exec("x", policy=policy)
nsbox.Sandbox(policy).create_subprocess_shell("x", kill_on_exti=True)
