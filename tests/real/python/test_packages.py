"""Packages that are imported before the fork: they work in branches and kernels, with their threads, and seeded afresh."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

import nsbox
from nsbox import Policy, Sandbox

PACKAGES = {
    "numpy": ("numpy", "float((numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum())", 27_000_000.0),
    "pandas": ("pandas", "pandas.DataFrame({'a': [1, 2, 3]}).a.sum().item()", 6),
    "scipy": ("scipy.linalg", "round(float(scipy.linalg.svdvals([[3.0, 0], [0, 4]])[0]), 6)", 4.0),
    "torch": ("torch", "float((torch.ones(300, 300) @ torch.ones(300, 300)).sum())", 27_000_000.0),
    "matplotlib": ("matplotlib.pyplot", "len(matplotlib.pyplot.plot([1, 2]))", 1),
}
# What each does as setup, before the fork. torch.set_num_threads(1): GNU's OpenMP can't be forked once it has threads.
SETUPS = {"torch": "import torch; torch.set_num_threads(1)\n"}


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> str:
    """The name of a package that is installed here."""
    pytest.importorskip(request.param)
    return str(request.param)


@pytest.fixture
def box(policy: Policy) -> Iterator[Sandbox]:
    with Sandbox(policy) as made:
        yield made


@pytest.mark.parametrize("is_used", [False, True])
def test_packages(box: Sandbox, package: str, is_used: bool) -> None:
    """They compute in branches, in kernels and in their forks, also if the warm interpreter has used them before."""
    module, code, value = PACKAGES[package]
    code = f"import {module}\n{code}"
    setup = SETUPS.get(package, "") + code if is_used else ""
    with box.python(imports=[module], setup=setup) as py:
        assert [py.run(code, timeout=40).value for _ in range(2)] == [value, value]
        assert [result.value for result in py.map([code] * 4, workers=2, timeout=40)] == [value] * 4
        with py.kernel() as kernel:
            assert kernel.run(code, timeout=40).value == value
            assert [fork.run(code, timeout=40).value for fork in kernel.fork(2)] == [value, value]


def test_numpy_is_seeded(box: Sandbox) -> None:
    """Each branch has random numbers of its own; the control is the seed that a snippet sets."""
    pytest.importorskip("numpy")
    with box.python(imports=["numpy"]) as py:
        drawn = {py.run("numpy.random.random()").value for _ in range(3)}
        seeded = {py.run("numpy.random.seed(1); numpy.random.random()").value for _ in range(2)}
    assert len(drawn) == 3 and len(seeded) == 1


@pytest.mark.parametrize("is_imported", [False, True])
@pytest.mark.parametrize("end", ["", "plt.show()"])
def test_figures(box: Sandbox, is_imported: bool, end: str) -> None:
    """Open figures are shown at the end, and by show(), as PNGs; a figure that is the value is shown once."""
    pytest.importorskip("matplotlib")
    code = f"import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.figure()\n{end}\nNone"
    with box.python(imports=["matplotlib.pyplot"] if is_imported else []) as py:
        result = py.run(code, timeout=40)
        assert result.exception is None, result.stderr
        assert [base64.b64decode(one["image/png"])[:4] for one in result.displays] == [b"\x89PNG"] * 2
        with py.kernel() as kernel:
            assert len(kernel.run(code, timeout=40).displays) == 2
            figure = kernel.run("figure, axes = plt.subplots()\naxes.plot([1, 2])\nfigure", timeout=40)
    assert figure.mime is not None and list(figure.mime) == ["image/png"] and figure.displays == ()


def test_data_frames(box: Sandbox) -> None:
    """A data frame is shown as HTML and as text."""
    pytest.importorskip("pandas")
    with box.python(imports=["pandas"]) as py:
        result = py.run("import pandas as pd\npd.DataFrame({'a': [1, 2]})", timeout=40)
    assert result.mime is not None and "<table" in result.mime["text/html"]
    assert result.repr == "   a\n0  1\n1  2" and result.value is None


def test_threads_are_named(box: Sandbox) -> None:
    """A thread that setup leaves is an error that names it."""
    setup = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), name='the poller').start()"
    with pytest.raises(nsbox.NsboxError, match="the poller"):
        box.python(setup=setup).start()
