"""Python: code in milliseconds, contained. Each run is a branch of a warm interpreter.

    with nsbox.Sandbox(policy) as box:
        py = box.python(imports=["json"])
        print(py.run("print(6 * 7)").stdout)
        print(py.run("[n * n for n in numbers]", inputs={"numbers": [1, 2, 3]}).value)

A branch has namespaces of its own, and the same sandbox as any command of the policy. What it does stays in it, except
for what it writes where the policy allows writing. Its private home is its own too; a home of "private:NAME" is kept.
"""

from __future__ import annotations

import sys
import weakref

from nsbox._base.display import type_phrase
from nsbox._base.errors import Reason, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._interpreter.executable import check_python
from nsbox._interpreter.program import Wish
from nsbox._interpreter.supply import Supply
from nsbox._lookup.host import host_for
from nsbox._paths.home import PRIVATE, is_of_box
from nsbox._popen.story import Attempt
from nsbox._python.result import PythonResult as PythonResult
from nsbox._python.result import python_schema as python_schema
from nsbox._spawn.prepare import prepare
from nsbox._tools.arguments import check_timeout

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Any, Unpack

    from nsbox._batches.map import PythonMap, RunOne, Snippet
    from nsbox._batches.options import MapOptions
    from nsbox._batches.progress import Wish as ProgressWish
    from nsbox._calls.token import CancelToken
    from nsbox._interpreter.interpreter import Interpreter
    from nsbox._kept.tool_calls import ToolOptions
    from nsbox._kernels.kernel import PythonKernel
    from nsbox._kernels.process import KernelProcess
    from nsbox._policy.policy import Policy
    from nsbox.sandbox import Sandbox
    from nsbox.secrets import Secret, Store

__all__ = ["Python", "PythonResult", "python_schema"]

_MOST_STOCK = 64


class Python:
    """Runs Python code under the policy of a Sandbox. Sandbox.python() makes it, and it ends with that Sandbox.

    A warm interpreter is made at the first run, or by start(). It is made again if it has ended, if the Sandbox's
    policy changes, or if something changes on this machine that matters to the policy. Its imports and its setup are
    trusted, as a command under Policy(nested=True) is: they are contained, but can make namespaces.

    Threads may share it. In a forked child of this process it begins afresh.
    """

    def __init__(
        self,
        box: Sandbox,
        *,
        python: str | os.PathLike[str] | None = None,
        imports: Sequence[str] = (),
        setup: str = "",
        stock: int = 2,
        start_timeout: float = 60.0,
        overlay: bool = False,
    ) -> None:
        """Hold the wishes; Sandbox.python() describes the parameters."""
        if isinstance(imports, str) or not all(isinstance(name, str) for name in imports):
            raise TypeError(f"imports is {imports!r:.100}, must be a list of the names of modules")
        wrong = [name for name in imports if not all(part.isidentifier() for part in name.split("."))]
        if wrong:
            raise ValueError(f"imports has {wrong[0]!r:.100}, which is no name of a module")
        if not isinstance(setup, str):
            raise TypeError(f"setup is {type_phrase(setup)}, must be a str of code")
        if isinstance(stock, bool) or not isinstance(stock, int) or not 0 <= stock <= _MOST_STOCK:
            raise ValueError(f"stock is {stock!r}, must be 0 to {_MOST_STOCK}")
        if not isinstance(overlay, bool):
            raise TypeError(f"overlay is {overlay!r:.100}, must be a bool")
        limit = check_timeout(start_timeout, "start_timeout")
        if limit is None:
            raise ValueError("start_timeout is None, must be a number of seconds above 0")
        self._box = box
        self._latest: tuple[Policy, Policy] | None = None  # the Sandbox's own, and that of branches
        wish = Wish(check_python(python), tuple(imports), setup, stock, limit, overlay)
        self._supply = Supply(wish, lambda: box._open_way().relay)
        self._is_closed = False
        self._kernels: weakref.WeakSet[PythonKernel] = weakref.WeakSet()

    def _policy(self) -> Policy:
        """Return the policy that holds now; raises ValueError once this or the Sandbox is closed."""
        if self._is_closed:
            raise ValueError("the Python is closed: Sandbox.python() makes another")
        way = self._box._open_way()
        if self._box.mode == "disabled":
            raise UnavailableError(Reason("in mode 'disabled' nothing is contained, so there are no branches"))
        policy, latest = way.policy, self._latest
        if latest is None or latest[0] is not policy:
            # The home that commands share would lead from one branch to the next.
            latest = self._latest = policy, policy.with_(home=PRIVATE) if is_of_box(policy.home) else policy
        return latest[1]

    def _interpreter(self) -> Interpreter:
        policy = self._policy()
        return self._supply.interpreter(policy, prepare(policy, host_for(policy)))

    def start(self) -> Python:
        """Return this object once the interpreter is warm. Raises InterpreterError, and what starting one raises."""
        with Attempt("python", ["python"], policy=self._box.policy):
            self._interpreter()
        return self

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    @property
    def is_warm(self) -> bool:
        """Whether there is an interpreter now."""
        return self._supply.current is not None

    @property
    def why_cold(self) -> str:
        """Why each run does the imports and the setup itself; "" if the interpreter has done them, or isn't warm yet.

        The interpreter runs no code from where the policy's commands can write. If they can write to its packages, as
        in a virtual environment in the workspace, each run loads these itself, without any rights. That is slower.
        """
        current = self._supply.current
        return "" if current is None else current.choice.why_cold

    @property
    def version(self) -> tuple[int, int, int]:
        """The version of the interpreter, such as (3, 11, 2). Starts it, as `executable` does."""
        return self._interpreter().facts.version

    @property
    def executable(self) -> str:
        """The path of the interpreter, as code sees it."""
        return self._interpreter().facts.executable

    def run(
        self,
        code: str,
        *,
        inputs: Mapping[str, object] | None = None,
        args: Sequence[str] = (),
        check: bool = False,
        **options: Unpack[ToolOptions],
    ) -> PythonResult:
        """Run code in a branch of its own, and return one record of what it did. The branch ends with it.

        code: as after `python -c`. The value of a last line that is an expression is in the record.
        inputs: a mapping of variables for the code; the values are JSON's. Default: None.
        args: a list of str, which becomes sys.argv[1:]. Default: none.
        timeout: seconds, after which everything is ended. They begin when the interpreter is ready: its own start has
            start_timeout. Default: None, for no limit.
        grace: seconds from SIGTERM to SIGKILL then, from 0 to 600. Default: 2.
        cwd, env, input, secrets, max_output, cancel, on_output: as for Sandbox.shell(). Secrets are masked in all that
            the code puts into the record, as in its output.
        check: whether to raise CalledProcessError for a status that isn't 0. Default: False.

        Unless check is true, code that fails or takes too long raises nothing here: the record says so. Raises
        InterpreterError if the interpreter can't be made, ValueError once this is closed, and what Sandbox.shell()
        raises.
        """
        from nsbox._python.call import PythonCall

        if isinstance(args, str) or not all(isinstance(arg, str) for arg in args):
            raise TypeError(f"args is {args!r:.100}, must be a list of str")
        chosen: dict[str, Any] = {**options}
        on_output = chosen.pop("on_output", None)
        if on_output is not None:
            from nsbox._handles.stream import sink

            chosen["sink"] = sink(on_output)
        result = PythonCall(self._supply, self._policy(), code, inputs=inputs, args=args, **chosen).run()
        if check:
            result.check_returncode()
        return result

    def map(
        self,
        codes: Iterable[Snippet],
        *,
        inputs: Mapping[str, object] | None = None,
        workers: int = 2,
        ordered: bool = True,
        progress: ProgressWish | bool = None,
        cancel: CancelToken | None = None,
        **options: Unpack[MapOptions],
    ) -> PythonMap:
        """Return an iterator of the results of many snippets, each in a branch of its own, a few at a time.

        Each result's `index` says which snippet it belongs to. Each snippet runs at most once: if a branch is lost with
        its interpreter, its record has the cause "unknown", and `why` says how the interpreter ended. Another
        interpreter runs the rest.

        codes: an iterable of str, or of tuples: a str, and a mapping of inputs for this one. It may be endless: only
            4 for each worker are read ahead, in the thread that iterates. An error that it raises is raised here after
            the results of what came before.
        inputs: variables for all of them, as for run(). Default: None.
        workers: how many run at the same time, from 1 to 256. Default: 2.
        ordered: whether results come in the order of the codes; otherwise as they are completed. Default: True.
        progress: True for a line on the terminal, if stderr is one and the package rich is installed
            (pip install "nsbox[rich]"); a function, which is called with a MapProgress after each snippet, in the
            thread that iterates. Default: None.
        cancel: a CancelToken. Once it is cancelled, what runs is ended, no more is read, and the results so far come.
        options: timeout, grace, args, cwd, env, input, secrets and max_output of each, as for run().

        Closing or dropping the iterator ends what runs; a `with` block closes it. Raises TypeError and ValueError, and,
        during iteration, what run() raises.
        """
        from nsbox._batches.map import PythonMap as OwnMap

        return OwnMap(
            self.run_one(options),
            codes,
            inputs=inputs,
            workers=workers,
            ordered=ordered,
            progress=progress,
            cancel=cancel,
        )

    def run_one(self, options: MapOptions) -> RunOne:
        """Return a function that runs one of many snippets."""
        from nsbox._batches.options import runner

        return runner(self._supply, self._policy, options)

    def kernel(
        self,
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Store | Mapping[str, Secret | str] | None = None,
        functions: Mapping[str, Callable[..., Any]] | None = None,
    ) -> PythonKernel:
        """Return a PythonKernel: a branch that stays, in which variables live from call to call.

        cwd, env, secrets: as for run(), for all of its calls. Secrets are masked in all that code puts into records.
        functions: a mapping of names to functions of this process, which code may call by these names. Arguments and
            what is returned are values that JSON has, up to 4 MiB of arguments. What a function raises, the code gets:
            the same exception if it is one of Python's own, else a RuntimeError. A function runs in the thread that
            called run(). Meanwhile the time limit isn't looked at. Only the code's own thread may call, not one that
            it starts. Default: None.

        The kernel ends when it is closed, or this object is. Raises TypeError and ValueError for functions, and what
        run() raises before its code begins.
        """
        from nsbox._kernels.functions import check_functions
        from nsbox._kernels.kernel import PythonKernel as OwnKernel
        from nsbox._kernels.start import begun, wish

        wanted, scrubber = wish(cwd, env, secrets)
        checked = check_functions(functions)

        def start() -> KernelProcess:
            return begun(self._supply, self._policy(), wanted)

        return OwnKernel(start, self._policy(), scrubber, family=self._kernels, functions=checked)

    def close(self, *, _is_late: Callable[[], bool] = sys.is_finalizing) -> None:
        """End the interpreter and all that runs in its branches. Closing twice isn't an error.

        Raises KillError if something in it doesn't end.
        """
        self._is_closed = True
        if not _is_late():  # else the kernel ends it
            for kernel in list(self._kernels):
                kernel.close()
            self._supply.close()

    def __enter__(self) -> Python:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        current = self._supply.current
        state = "closed" if self._is_closed else "cold" if current is None else current.facts.executable
        return f"<nsbox.Python {state}>"

    def _after_fork(self) -> None:
        """Begin afresh in a forked child."""
        self._supply.after_fork()
        self._kernels = weakref.WeakSet()
