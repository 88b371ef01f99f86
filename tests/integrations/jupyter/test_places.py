"""Attacks on what Jupyter runs outside of sandboxes, from kernels whose notebooks lie above it. Controls succeed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from nsbox_kernels import execute, started

from nsbox import Policy, PolicyError
from nsbox.integrations.jupyter import install
from nsbox.integrations.jupyter.policies import Options

pytestmark = [pytest.mark.timeout(900)]

# Each attack is a line that a cell runs; {home} is where Jupyter's directories lie, one below the other as in a home.
ATTACKS = {
    "rewrites its own kernelspec": "put('{home}/.local/share/jupyter/kernels/contained/kernel.json')",
    "removes it": "os.remove('{home}/.local/share/jupyter/kernels/contained/kernel.json')",
    "adds a kernel": "os.mkdir('{home}/.local/share/jupyter/kernels/more')",
    "replaces a directory above": "os.rename('{home}/.local', '{home}/.moved')",
    "replaces one further down": "os.rename('{home}/.local/share/jupyter', '{home}/.local/share/moved')",
    "writes the server's configuration": "put('{home}/.jupyter/jupyter_server_config.py')",
    "replaces its directory": "os.rename('{home}/.jupyter', '{home}/.gone')",
    "writes what IPython runs at its start": "put('{home}/.ipython/startup.py')",
    "adds an extension to the browser's page": "os.makedirs('{home}/.local/share/jupyter/labextensions/x')",
    "reads the server's token": "print(open('{home}/.local/share/jupyter/runtime/jpserver-1.json').read())",
    "reads the key that signs notebooks": "print(open('{home}/.local/share/jupyter/notebook_secret').read())",
}
VARIABLES = {
    "JUPYTER_DATA_DIR": ".local/share/jupyter",
    "JUPYTER_CONFIG_DIR": ".jupyter",
    "JUPYTER_RUNTIME_DIR": ".local/share/jupyter/runtime",
    "IPYTHONDIR": ".ipython",
}
PRELUDE = "import os\ndef put(path):\n    with open(path, 'w') as file: file.write('taken')\n"


def _home(root: Path) -> Path:
    """Make a home with what Jupyter has in one."""
    for name, text in (
        (".local/share/jupyter/kernels/contained/kernel.json", "{}"),
        (".local/share/jupyter/runtime/jpserver-1.json", "token"),
        (".local/share/jupyter/notebook_secret", "token"),
        (".jupyter/jupyter_server_config.py", ""),
        (".ipython/startup.py", ""),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directories as in a home, which variables name: in a real one no kernel starts. `contained` is installed there."""
    home = _home(tmp_path / "home")
    monkeypatch.delenv("JUPYTER_PATH", raising=False)
    for name, place in VARIABLES.items():
        monkeypatch.setenv(name, str(home / place))
    monkeypatch.setenv("HOME", str(tmp_path / "real"))
    monkeypatch.chdir(home)
    install("contained", user=True, check=False)
    assert Path(KernelSpecManager().get_kernel_spec("contained").resource_dir).is_relative_to(home)
    return home


def _snapshot(home: Path) -> dict[str, str]:
    places = (".local/share/jupyter/kernels", ".local/share/jupyter/labextensions", ".jupyter", ".ipython")
    return {
        str(path.relative_to(home)): path.read_text()
        for place in places
        for path in (home / place).rglob("*")
        if path.is_file()
    }


@pytest.mark.smoke
def test_attacks(home: Path) -> None:
    """No attack succeeds on Jupyter's own directories. The control: each does on copies of them beside."""
    copies = {name: _home(home / "copies" / str(i)) for i, name in enumerate(ATTACKS)}
    before = _snapshot(home)
    with started("contained", home) as (_, client):
        assert execute(client, PRELUDE) == ""
        for name, attack in ATTACKS.items():
            said = execute(client, attack.format(home=home))
            assert said in ("OSError", "PermissionError"), (name, said)
            assert execute(client, "put('work'); print(os.path.exists('work'))") == "True\n", name
        for name, attack in ATTACKS.items():
            said = execute(client, attack.format(home=copies[name]))
            assert said == ("token\n" if "reads" in name else ""), (name, said)
    assert _snapshot(home) == before
    assert "taken" in _snapshot(copies["rewrites its own kernelspec"]).values()


def test_what_is_not_there_yet(home: Path) -> None:
    """A kernel can't make a directory that Jupyter would look in. The control: it makes others."""
    config = home / ".jupyter"
    (config / "jupyter_server_config.py").unlink()
    config.rmdir()
    attack = PRELUDE + "os.makedirs({place!r}, exist_ok=True); put({place!r} + '/jupyter_server_config.py')"
    with started("contained", home) as (_, client):
        assert execute(client, attack.format(place=str(config))) == "PermissionError"
        assert execute(client, attack.format(place=str(home / "other"))) == ""
    assert [*config.iterdir()] == [] and (home / "other/jupyter_server_config.py").read_text() == "taken"


def test_a_kernelspec_behind_a_link(home: Path) -> None:
    """A kernel that is installed as a link to a directory of notebooks is kept as well."""
    source = home / "work/kernel"
    source.mkdir(parents=True)
    spec = {"argv": ["true"], "display_name": "linked", "language": "x", "metadata": {}}
    (source / "kernel.json").write_text(json.dumps(spec))
    (home / ".local/share/jupyter/kernels/linked").symlink_to(source)
    attack = PRELUDE + "put('work/kernel/kernel.json')"
    with started("contained", home) as (_, client):
        assert execute(client, attack) == "OSError"
    (home / ".local/share/jupyter/kernels/linked").unlink()
    with started("contained", home) as (_, client):
        assert execute(client, attack) == ""  # the control: nothing of Jupyter's any more


def test_a_link_on_the_way(home: Path) -> None:
    """A link that the kernel could replace is an error that says so. The control: from below, it starts."""
    os.rename(home / ".jupyter", home / "dotfiles")
    (home / ".jupyter").symlink_to("dotfiles")
    with pytest.raises(PolicyError, match=r"home/\.jupyter is a link to what belongs to Jupyter"):
        Options().policy_in(str(home))
    (home / "notebooks").mkdir()
    assert Options().policy_in(str(home / "notebooks")).write == (str(home / "notebooks"),)


@pytest.mark.parametrize("place", [".local/share/jupyter/kernels", ".jupyter/mine", ".local/share/jupyter"])
def test_notebooks_in_a_place_of_jupyters(home: Path, place: str) -> None:
    """That is an error. The control: a directory beside."""
    (home / place).mkdir(parents=True, exist_ok=True)
    with pytest.raises(PolicyError, match="which belongs to Jupyter"):
        Options().policy_in(str(home / place))
    (home / ".local/share/other").mkdir()
    assert Options().policy_in(str(home / ".local/share/other")).read == ()


def test_a_policy_that_opens_the_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file makes writable or readable is kept and hidden alike. The control: the policy without it."""
    for name in VARIABLES:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "p.toml").write_text(f'writable_paths = ["{home}"]\n')
    (home / "notebooks").mkdir()
    kernelspec, token = (
        home / ".local/share/jupyter" / name for name in ("kernels/contained/kernel.json", "runtime/jpserver-1.json")
    )
    policy = Options(policy=str(tmp_path / "p.toml")).policy_in(str(home / "notebooks"))
    plain = Policy.load(tmp_path / "p.toml", workspace=home / "notebooks")
    assert not policy.can_write(kernelspec) and plain.can_write(kernelspec)
    (tmp_path / "p.toml").write_text(f'readable = ["{home}"]\n')
    policy = Options(policy=str(tmp_path / "p.toml")).policy_in(str(home / "notebooks"))
    plain = Policy.load(tmp_path / "p.toml", workspace=home / "notebooks")
    assert not policy.can_read(token) and plain.can_read(token)
    assert policy.can_write(home / "notebooks/x") and policy.can_read(kernelspec)
    (home / ".jupyter/jupyter_server_config.py").unlink()
    (home / ".jupyter").rmdir()  # no kernel could make it: it needn't be there
    assert (
        str(home / ".jupyter") not in Options(policy=str(tmp_path / "p.toml")).policy_in(str(home / "notebooks")).deny
    )
    assert not (home / ".jupyter").exists()


def test_nothing_is_made_elsewhere(home: Path) -> None:
    """With notebooks that contain nothing of Jupyter's, the policy is as it was, and no directory is made."""
    (home / "notebooks").mkdir()
    before = sorted(home.rglob("*"))
    assert Options().policy_in(str(home / "notebooks")) == Policy.workspace(home / "notebooks")
    assert sorted(home.rglob("*")) == before
