"""Uses of nsbox that are errors, one a line. Not to be run."""

import nsbox

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
nsbox.Policy.host(seccmp="off")
nsbox.Policy.layers(hostnam="x")
policy.with_(shell="/bin/sh")
number: int = nsbox.run(["x"], text=True).stdout
words: list[str] = nsbox.check_output(["x"])
nsbox.Sandbox(policy).run(["x"], timout=5)
nsbox.Sandbox(policy).shell("x", timout=5)
nsbox.Sandbox(policy).check_output(["x"], policy=policy)
