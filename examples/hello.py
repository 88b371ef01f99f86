import tempfile
from pathlib import Path

import nsbox

with tempfile.TemporaryDirectory() as project:
    Path(project, ".env").write_text("TOKEN=secret\n")
    limits = nsbox.Limits(memory="512M", cpu_seconds=30)
    policy = nsbox.Policy.workspace(project, deny=[f"{project}/.env"], limits=limits)
    script = "echo hello | tee made; cat .env; touch /usr/made; ls /var/log"
    done = nsbox.run(script, shell=True, policy=policy, capture_output=True, text=True, timeout=60)
    print(done.stdout + done.stderr)
