"""nsbox's tools, as LangChain's: for an agent without ShellToolMiddleware.

LangChain reads the annotations of a tool's _run() at each call. So this file has them as values, not as text, which
would be compiled each time.
"""

import functools
import json
from collections.abc import Iterable
from typing import Any

from nsbox import CancelToken, Sandbox, Session, Transaction, call_tool, in_thread, tool_schemas
from nsbox.integrations._extras import without

try:
    from langchain_core.tools import StructuredTool, ToolException
except ImportError as error:
    raise without("langchain", error) from error


class _Tool(StructuredTool):
    """A tool whose functions take what the model gives, and nothing of LangChain's.

    StructuredTool's own methods look at each call whether the function wants a config or callbacks. That would be half
    of what LangChain takes for a call.
    """

    def _run(self, *args: Any, **arguments: Any) -> Any:
        return self.func(*args, **arguments)

    async def _arun(self, *args: Any, **arguments: Any) -> Any:
        return await self.coroutine(*args, **arguments)


def tools(
    box: Sandbox | Session | Transaction, names: Iterable[str] | None = None, **options: Any
) -> list[StructuredTool]:
    """Return nsbox's tools for an agent of LangChain: shell, files, jobs. Each answers with JSON.

    A model's mistake, such as a path that the policy doesn't allow, becomes a ToolMessage with the status "error". It
    says what is wrong. A tool call in a cancelled asyncio task is ended first.

    box: a Sandbox, Session, Task or Transaction.
    names: which tools, such as ["shell", "edit"]. Default: None, for all.
    options: for nsbox.call_tool(), such as env, secrets and timeout.

    Raises ValueError for a tool that doesn't exist. A call raises what nsbox.call_tool() raises.
    """
    return [_tool(box, schema["function"], options) for schema in tool_schemas(names)]


def _tool(box: Any, schema: dict[str, Any], options: dict[str, Any]) -> StructuredTool:
    name: str = schema["name"]

    def run(**arguments: Any) -> str:
        return _answer(call_tool(box, name, arguments, **options))

    async def arun(**arguments: Any) -> str:
        wish = options.get("cancel")
        token = CancelToken() if wish is None else wish.child()
        call = functools.partial(call_tool, box, name, arguments, **{**options, "cancel": token})
        return _answer(await in_thread(call, token.cancel))

    return _Tool.from_function(
        func=run,
        coroutine=arun,
        name=name,
        description=schema["description"],
        args_schema=schema["parameters"],
        infer_schema=False,
        handle_tool_error=True,
    )


def _answer(answer: dict[str, Any]) -> str:
    if set(answer) == {"error"}:
        raise ToolException(answer["error"])
    return json.dumps(answer, ensure_ascii=False)
