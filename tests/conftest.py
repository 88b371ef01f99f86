"""What all tests share: the rule that a test leaves nothing behind, a place to work in, a policy for it.

Most tests run as root and as an ordinary user alike. One that makes sense for one of them only says so, and why:
`@pytest.mark.as_root("reason")`, `@pytest.mark.as_user("reason")`. With `--quick=users` each user leaves to the other what is
the same for both: quick.toml.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "real" / "lib"))

from nsbox_testing import caches, leftovers, needs, quick, warm

from nsbox._base import imports
from nsbox._homes import reach

_temporary = pytest.StashKey[Path]()
_has_passed = pytest.StashKey[bool]()
_quick = pytest.StashKey[quick.Quick]()


def pytest_addoption(parser: pytest.Parser) -> None:
    said = "leave out, or to the other user or machine, what tests/quick.toml says"
    parser.addoption("--quick", choices=quick.KINDS, help=said)


def pytest_configure(config: pytest.Config) -> None:
    os.environ.pop("PYTEST_ADDOPTS", None)  # meant for this run, not for those that tests start
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup's children ignore it, and so would ours
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as those that a script's shell starts by "&" do
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    config.addinivalue_line("markers", "as_root(reason): only makes sense for uid 0 with its capabilities")
    config.addinivalue_line("markers", "as_user(reason): only makes sense for an ordinary user")
    if kind := config.getoption("--quick"):
        config.stash[_quick] = quick.Quick(kind)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if _quick in config.stash and config.stash[_quick].is_left(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _quick in config.stash:
        items[:], others = config.stash[_quick].split(items)
        config.hook.pytest_deselected(items=others)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_has_passed] = exitstatus == 0


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Nothing is left in the clone, nor of temporary files, unless a test has failed."""
    caches.remove()
    if config.stash.get(_has_passed, False) and _temporary in config.stash:
        caches.remove_temporary(config.stash[_temporary])


def pytest_runtest_setup(item: pytest.Item) -> None:
    is_root = os.geteuid() == 0
    for name, unwanted in (("as_root", not is_root), ("as_user", is_root)):
        mark = item.get_closest_marker(name)
        if mark is not None and unwanted:
            pytest.skip(f"{name}: {mark.args[0]}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """After all else, say in a paragraph what was skipped for want of what."""
    yield
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    text = needs.summary(row[2] for row in skipped if isinstance(row, tuple))
    if text:
        terminalreporter.write_sep("=", "not tested here")
        terminalreporter.write_line(textwrap.fill(text, 100, break_on_hyphens=False))


@pytest.fixture(scope="session", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[str]:
    """The directory for temporary files of this run alone, so that one left behind is seen whatever else runs here."""
    path = str(tmp_path_factory.mktemp("temporary"))
    pytestconfig.stash[_temporary] = tmp_path_factory.getbasetemp()
    # Matplotlib keeps a cache, in a temporary directory where the home directory can't be written to.
    new = {"TMPDIR": path, "MPLCONFIGDIR": str(tmp_path_factory.mktemp("matplotlib"))}
    new["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))  # of transactions
    old = {key: os.environ.get(key) for key in new}
    os.environ |= new
    tempfile.tempdir = path
    from nsbox._machine import probe

    probe._known.clear()  # what the machine is known to be has that directory in it
    yield path
    tempfile.tempdir = None
    for key, previous in old.items():
        if previous is None:
            del os.environ[key]
        else:
            os.environ[key] = previous


@pytest.fixture(autouse=True)
def own_openings() -> Iterator[None]:
    """A directory that a test lets commands write to is the caller's own again for the next test."""
    before, reached = set(imports.opened), set(reach.reached)
    yield
    imports.opened.intersection_update(before)
    reach.reached.intersection_update(reached)


@pytest.fixture(scope="session")
def apart() -> None:
    """What this run does can be told from all else that goes on."""
    leftovers.mark()
    leftovers.own_mounts()


@pytest.fixture(autouse=True)
def leaves_nothing_behind(temporary: str, apart: None) -> Iterator[None]:
    """No process, descriptor, mount or temporary file is left, and this process is what it was."""
    with leftovers.nothing_left(temporary):
        yield


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty directory, the only one of the host that a sandbox with the fixture `policy` can write to."""
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def policy(workspace: Path):
    """The default policy for the fixture `workspace`."""
    import nsbox

    return nsbox.Policy.workspace(workspace)


@pytest.fixture(autouse=True)
def by_sandboxes(leaves_nothing_behind: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With NSBOX_TESTS_WARM every command that a test gives a policy goes through a Sandbox with that policy."""
    with warm.by_sandboxes(monkeypatch):
        yield
