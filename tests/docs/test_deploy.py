"""deploy/ and .devcontainer/: each file is read by the tool that knows its format, and says what there is.

No container engine, cluster or CI service is here. The steps of the GitHub action and the Dockerfile's commands run in a
directory of the test, with a stand-in for nsbox's wheel. tests/real/machine/test_deployed.py imitates the containers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from nsbox_testing import needs

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
ACTION: dict[str, Any] = yaml.safe_load((DEPLOY / "action/action.yml").read_text())
STEPS: dict[str, dict[str, Any]] = {step.get("name", step.get("id")): step for step in ACTION["runs"]["steps"]}
PODS = [*sorted((DEPLOY / "kubernetes").glob("*.yaml"))]
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["nsbox"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def devcontainer() -> dict[str, Any]:
    """The file, without the comments that its format has besides JSON's."""
    text = (ROOT / ".devcontainer/devcontainer.json").read_text()
    found = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.M))
    assert isinstance(found, dict)
    return found


# ---- formats


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("compose-spec", "compose.yaml"),
        ("github-actions", "action/action.yml"),
        ("gitlab-ci", "ci/gitlab.yml"),
        ("github-workflows", "ci/github.yml"),
    ],
)
def test_schemas(schema: str, path: str, tmp_path: Path) -> None:
    """The file is what its schema, which the checker has with it, says; control: with one key more it isn't."""
    check = [sys.executable, "-P", "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*check, str(DEPLOY / path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    wrong = yaml.safe_load((DEPLOY / path).read_text())
    key = {"compose-spec": "services", "github-actions": "runs", "gitlab-ci": "sandboxed"}.get(schema, "jobs")
    wrong[key] = ["no", "mapping"]
    (tmp_path / "wrong.yml").write_text(yaml.safe_dump(wrong))
    assert subprocess.run([*check, str(tmp_path / "wrong.yml")], capture_output=True, check=False).returncode == 1


@needs.programs("hadolint")
def test_dockerfile() -> None:
    """The linter has nothing to say; control: it says something of a file that has a fault."""
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert hadolint is not None

    def lint(text: str) -> str:
        return subprocess.run([hadolint, "-"], input=text, capture_output=True, text=True, check=False).stdout

    assert lint(DOCKERFILE) == ""
    assert "DL3002" in lint(DOCKERFILE.replace("USER 1000:1000", "USER root"))


@pytest.mark.parametrize("path", PODS, ids=lambda path: path.name)
def test_pods(path: Path) -> None:
    """A pod is what Kubernetes 1.33 and the newest known version take; control: an unknown field is refused."""
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate (pip install '.[dev]')")
    pod = yaml.safe_load(path.read_text())
    for version in ("1.33", validate.latest_version()):
        validate.validate(pod, version, strict=True)
    pod["spec"]["hostUser"] = False
    with pytest.raises(validate.ValidationError):
        validate.validate(pod, "1.33", strict=True)


def test_devcontainer() -> None:
    """The file's keys are those of containers.dev, its scripts are there, and it has what a container needs."""
    found = devcontainer()
    assert {*found} <= {
        *("name", "image", "remoteUser", "init", "securityOpt", "postCreateCommand", "postStartCommand"),
        "customizations",
    }
    folder = "${localWorkspaceFolder}/deploy"
    assert [text.replace(folder, ".") for text in found["securityOpt"]] == [
        text
        for name in ("seccomp", "apparmor", "systempaths")
        for text in COMPOSE["security_opt"]
        if text.startswith(name)
    ]
    shell, script, option = found["postCreateCommand"].split()
    assert shell == "sh" and option in (ROOT / script).read_text()


# ---- what they say


def test_the_profile_is_there() -> None:
    """Each way to name the seccomp profile leads to the file: from compose.yaml, the Dockerfile, a node."""
    (path,) = (text.partition("=")[2] for text in COMPOSE["security_opt"] if text.startswith("seccomp="))
    assert (DEPLOY / path).samefile(DEPLOY / "seccomp.json")
    assert "seccomp=deploy/seccomp.json" in DOCKERFILE
    (isolated,) = (path for path in PODS if path.name == "isolated.yaml")
    name = yaml.safe_load(isolated.read_text())["spec"]["securityContext"]["seccompProfile"]["localhostProfile"]
    assert f"put deploy/seccomp.json at /var/lib/kubelet/seccomp/{name}" in re.sub(r"\n# ", " ", isolated.read_text())


def test_nothing_more_than_needed() -> None:
    """No file gives root, a capability, another privilege, the engine's socket or the host's namespaces."""
    assert COMPOSE["cap_drop"] == ["ALL"] and COMPOSE["user"] == "1000:1000" and COMPOSE["read_only"] is True
    assert "no-new-privileges:true" in COMPOSE["security_opt"]
    assert not {"privileged", "cap_add", "devices", "pid", "ipc", "network_mode", "userns_mode", "volumes"} & {*COMPOSE}
    for path in PODS:
        spec = yaml.safe_load(path.read_text())["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & {*spec} and spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] == 1000
        assert all("hostPath" not in volume for volume in spec["volumes"])
        (container,) = spec["containers"]
        context = container["securityContext"]
        assert context.pop("procMount", "Default") == ("Unmasked" if spec.get("hostUsers") is False else "Default")
        assert context == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert "systempaths" not in str(yaml.safe_load((DEPLOY / "kubernetes/restricted.yaml").read_text()))


def test_state_is_out_of_reach() -> None:
    """The home, with nsbox's state, lies outside of the workspace, so that no command can change it."""
    mounts = {text.partition(":")[0] for text in COMPOSE["tmpfs"]}
    assert mounts == {"/tmp", "/work", "/home/nsbox"}
    for path in PODS:
        (container,) = yaml.safe_load(path.read_text())["spec"]["containers"]
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == mounts
    assert re.search(r"^WORKDIR /work\n", DOCKERFILE, re.M) and "--create-home" in DOCKERFILE


# ---- the Dockerfile


def runs() -> list[str]:
    """The commands of its RUN lines."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.M).replace("\\\n", "")
    return [line.removeprefix("RUN ") for line in text.splitlines() if line.startswith("RUN ")]


def wheel(directory: Path) -> Path:
    """A wheel that stands in for nsbox's: its command says its arguments."""
    path = directory / "nsbox-9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("nsbox_stub.py", "import sys\ndef main():\n    print('stand-in', *sys.argv[1:])\n")
        info = "nsbox-9.9.dist-info"
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: nsbox\nVersion: 9.9\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/entry_points.txt", "[console_scripts]\nnsbox = nsbox_stub:main\n")
        file.writestr(f"{info}/RECORD", "")
    return path


def test_build_and_install(tmp_path: Path) -> None:
    """The build's commands make a wheel directory and an environment with the command, and without pip."""
    build = [text for text in runs() if text.startswith("python -m")]
    assert len(build) == 2
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "python").chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "NSBOX": str(wheel(tmp_path))}
    environment |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for text in build:
        script = text.replace("/opt/nsbox", str(tmp_path / "opt")).replace("/wheels", str(tmp_path / "wheels"))
        done = subprocess.run(["sh", "-ec", script], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == ["nsbox-9.9-py3-none-any.whl"]
    said = subprocess.run([tmp_path / "opt/bin/nsbox", "doctor"], capture_output=True, text=True, check=True).stdout
    assert said == "stand-in doctor\n"
    assert not [*(tmp_path / "opt").rglob("pip*")]


def test_no_set_user_id_is_left(tmp_path: Path) -> None:
    """What clears the image's set-user-ID programs does so, and changes no other mode."""
    (text,) = (text for text in runs() if "-perm /6000" in text)
    command = text.partition(" && ")[0].strip().replace("find / ", f"find {tmp_path} ")
    modes = {"su": 0o4755, "wall": 0o2755, "cat": 0o755}
    for name, mode in modes.items():
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    subprocess.run(["sh", "-ec", command], check=True)
    assert {name: (tmp_path / name).stat().st_mode & 0o7777 for name in modes} == dict.fromkeys(modes, 0o755)


def test_context() -> None:
    """The build gets what nsbox is built from, each of which exists, and nothing else."""
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    assert kept == {
        *("LICENSE", "README.md", "pyproject.toml", "meson.build", "meson.options"),
        *("_nsbox_pytest.py", "csrc", "nsbox"),
    }
    assert all((ROOT / name).exists() for name in kept)


# ---- the action


def test_inputs_are_no_text_of_scripts() -> None:
    """No script has an expression of GitHub's, so that no input is read as a command; each is read by bash."""
    for step in STEPS.values():
        assert set(step) <= {"id", "name", "if", "uses", "with", "shell", "env", "run", "working-directory"}
        if "run" in step:
            assert "${{" not in step["run"] and step["shell"] == "bash"
            subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)
    named = {*re.findall(r"\$\{\{ inputs\.([\w-]+)", (DEPLOY / "action/action.yml").read_text())}
    assert named == {*ACTION["inputs"]}


def test_actions_are_pinned() -> None:
    """What the action uses is a commit, the one that the workflows use."""
    used = [step["uses"] for step in STEPS.values() if "uses" in step]
    workflows = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    assert used and all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", name) and name in workflows for name in used)


def step(name: str, directory: Path, *programs: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step as GitHub does. variables: those of its env, and others."""
    script = directory / "script.sh"
    script.write_text(STEPS[name]["run"])
    path = ":".join([*map(str, programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {
        **os.environ,
        "PATH": path,
        "RUNNER_TEMP": str(directory),
        "GITHUB_PATH": str(directory / "path"),
        **variables,
    }
    assert {*STEPS[name].get("env", ())} <= {*env}
    line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
    return subprocess.run(line, env=env, cwd=directory, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("allow", "value", "is_set"),
    [("true", "1", True), ("true", "0", False), ("false", "1", False), ("true", None, False)],
)
def test_user_namespaces_are_allowed(allow: str, value: str | None, is_set: bool, tmp_path: Path) -> None:
    """The setting is changed where it is 1 and the input allows that, and nowhere else."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "sudo").write_text(f'#!/bin/sh\necho "$*" >{tmp_path}/asked\n')
    (programs / "sudo").chmod(0o755)
    setting = tmp_path / "setting"
    if value is not None:
        setting.write_text(f"{value}\n")
    done = step("Allow user namespaces", tmp_path, programs, ALLOW=allow, SETTING=str(setting))
    assert done.returncode == 0, done.stderr
    asked = tmp_path / "asked"
    assert (asked.read_text() if asked.exists() else None) == (
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0\n" if is_set else None
    )


def test_installation(tmp_path: Path) -> None:
    """What is installed leaves only its command in PATH; an input that looks like an option is a name for pip."""
    variables = {"PYTHON": sys.executable, "SOURCE": "", "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    done = step("Install nsbox", tmp_path, PACKAGE=str(wheel(tmp_path)), **variables)
    assert done.returncode == 0, done.stderr
    (directory,) = (tmp_path / "path").read_text().splitlines()
    assert os.listdir(directory) == ["nsbox"]
    said = subprocess.run([f"{directory}/nsbox", "x"], capture_output=True, text=True, check=True).stdout
    assert said == "stand-in x\n"
    done = step("Install nsbox", tmp_path, PACKAGE="--version", **variables)
    assert done.returncode != 0 and "--version" in done.stderr


def test_doctor_decides(tmp_path: Path) -> None:
    """Where sandboxes are whole, the step is well; where they aren't, the job fails unless that was wished for."""
    assert step("What sandboxes can do here", tmp_path, ALLOW="true").returncode == 0
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "nsbox").write_text("#!/bin/sh\nexit 1\n")
    (programs / "nsbox").chmod(0o755)
    assert step("What sandboxes can do here", tmp_path, programs, ALLOW="true").returncode == 1
    assert step("What sandboxes can do here", tmp_path, programs, ALLOW="false").returncode == 0


def test_a_script_in_a_sandbox(tmp_path: Path) -> None:
    """The script runs in the sandbox, with options of one word a line; nothing of either runs outside."""
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    script = f'echo "$WORDS" >made; touch {outside} || echo refused; false | true'
    options = f"--env=WORDS=a b; $(touch {outside})\n\n--network=none"
    done = step("Run in a sandbox", tmp_path, SCRIPT=script, OPTIONS=options)
    assert done.stdout == "refused\n" and done.returncode == 1, done.stderr  # pipefail
    assert (tmp_path / "made").read_text() == f"a b; $(touch {outside})\n"
    assert not outside.exists()
    assert step("Run in a sandbox", tmp_path, SCRIPT="exit 7", OPTIONS="").returncode == 7


def test_git_files_stay_as_they_are(tmp_path: Path) -> None:
    """A script in the checkout can't make git run a program outside. Control: with `nsbox run` alone, it can."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    script = "git config core.fsmonitor 'touch ran' && echo configured"
    done = step("Run in a sandbox", tmp_path, SCRIPT=script, OPTIONS="")
    assert done.returncode != 0 and "configured" not in done.stdout, done.stdout
    subprocess.run([sys.executable, "-m", "nsbox", "run", "-c", script], cwd=tmp_path, check=True, capture_output=True)
    subprocess.run(["git", "status"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "ran").exists()


# ---- jobs; tests/real/machine/test_ci_jobs.py runs their lines


def test_the_workflow_gives_nothing_away() -> None:
    """The sample for GitHub: a token that can only read, and isn't left in the clone; no secret; actions by commits."""
    text = (DEPLOY / "ci/github.yml").read_text()
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    assert {*workflow[True]} == {"push", "pull_request"}  # YAML takes "on" for true
    (job,) = workflow["jobs"].values()
    assert "permissions" not in job and "secrets." not in text and "timeout-minutes" in job
    used = {step["uses"].partition("@")[0]: step for step in job["steps"] if "uses" in step}
    assert used["actions/checkout"]["with"]["persist-credentials"] is False
    workflows = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    for name, found in used.items():
        if name == "OWNER/REPOSITORY/deploy/action":
            assert found["uses"].endswith("@COMMIT")
        else:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", found["uses"]) and found["uses"] in workflows
    for step in job["steps"]:
        assert "${{" not in step.get("run", "")
        subprocess.run(["bash", "-n"], input=step.get("run", ""), text=True, check=True)


def test_both_steps_are_recorded_and_kept() -> None:
    """In each sample, one command has network and one hasn't; each has a file of records, in a directory that is kept."""
    github, gitlab, shell = (
        (DEPLOY / "ci" / name).read_text() for name in ("github.yml", "gitlab.yml", "contained.sh")
    )
    for text in (github, gitlab, shell):
        text = re.sub(r"^\s*#.*\n", "", text, flags=re.M)
        install, tests, *reports = re.findall(r"nsbox run (.*?)(?=nsbox run|\Z)", text, flags=re.S)
        assert all(re.search(r"-w \S*reports", line) and "--write" not in line for line in reports)
        assert "audit/install.jsonl" in install and "audit/tests.jsonl" in tests
        assert "--allow-net" in install or "$NETWORK" in install
        assert not re.search(r"--allow-net|--network|NETWORK|--env", "".join([tests, *reports]))
    job = yaml.safe_load(gitlab)["sandboxed"]
    assert job["artifacts"] == {"when": "always", "paths": ["audit/"]} and "mkdir -m 700 audit" in job["before_script"]
    kept = yaml.safe_load(github)["jobs"]["tests"]["steps"][-1]
    places = [f"${{{{ runner.temp }}}}/job/{name}" for name in ("audit", "reports")]
    assert kept["with"]["path"].split("\n")[:-1] == places and kept["if"] == "${{ !cancelled() }}"
    subprocess.run(["sh", "-n"], input=shell, text=True, check=True)
