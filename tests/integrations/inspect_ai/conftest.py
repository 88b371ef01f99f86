"""What the tests of the adapter for Inspect share: sandboxes, evals with a scripted model, and that nothing is left."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import tempfile
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task, eval
from inspect_ai._util.logger import init_logger
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate, use_tools

from nsbox.integrations.inspect_ai import NsboxConfig, NsboxSandboxEnvironment

Evaluate = Callable[..., EvalLog]

os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp()  # for Inspect's trace
atexit.register(shutil.rmtree, os.environ["XDG_DATA_HOME"], ignore_errors=True)
init_logger("warning")  # it keeps its file open, which is none of a test's leftovers


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "filterwarnings", "ignore:Unclosed <MemoryObject:ResourceWarning"
    )  # Inspect's own, as the next
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning")


def pytest_sessionfinish() -> None:
    """Let Inspect's own streams go, where nothing makes an error of their warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_directory() -> Iterator[None]:
    """No sandbox leaves its directory behind."""
    yield
    left = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(f"work-{os.getpid()}-")]
    assert left == []


@pytest.fixture
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[NsboxSandboxEnvironment]:
    """A sandbox as an eval's sample has it. Its configuration is the fixture's parameter, by default the usual one."""
    config: NsboxConfig | None = getattr(request, "param", None)
    made = await NsboxSandboxEnvironment.sample_init("test", config, {})
    yield made["default"].as_type(NsboxSandboxEnvironment)
    await NsboxSandboxEnvironment.sample_cleanup("test", config, made, False)


def scripted(calls: list[tuple[str, dict[str, Any]]]) -> Any:
    """Return a model that makes these calls of tools, one a turn, and then says "done"."""

    def turn(messages: Any, *rest: Any) -> ModelOutput:
        done = sum(message.role == "assistant" for message in messages)
        if done < len(calls):
            output = ModelOutput.for_tool_call("mockllm/model", *calls[done])
        else:
            output = ModelOutput.from_content("mockllm/model", "done")
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # counting would ask the network
        return output

    return get_model("mockllm/model", custom_outputs=turn, memoize=False)


@pytest.fixture
def evaluate(tmp_path: Path) -> Evaluate:
    """Return a function that runs an eval and returns its log."""

    def run(
        samples: list[Sample],
        *,
        tools: list[Any] | None = None,
        calls: list[tuple[str, dict[str, Any]]] | None = None,
        solver: Any = None,
        sandbox: Any = "nsbox",
        **options: Any,
    ) -> EvalLog:
        chain = solver if solver is not None else [use_tools(*(tools or [])), generate()]
        task = Task(dataset=samples, solver=chain, sandbox=sandbox)
        logs = eval(
            task,
            model=scripted(calls or []),
            display="none",
            log_dir=str(tmp_path / "logs"),
            fail_on_error=True,
            **options,
        )
        return logs[0]

    return run
