"""From the answer of call_tool() to a result of the protocol: text for models, structure for programs, and images."""

from __future__ import annotations

import json

import mcp_types as types

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._interpreter.wire import plain

if TYPE_CHECKING:
    from typing import Any


def failure(text: str) -> types.CallToolResult:
    """Return the result of a call that went wrong, which tells the model why."""
    return types.CallToolResult(content=[types.TextContent(type="text", text=plain(text))], is_error=True)


def result(name: str, answer: dict[str, Any]) -> types.CallToolResult:
    """Return the result of a call of a tool. An answer with "error" is the model's mistake; no other is an error.

    name: the tool's.
    answer: what call_tool() has returned.
    """
    if set(answer) == {"error"}:
        return failure(str(answer["error"]))
    answer = _encodable(answer)
    if name == "media":
        return _media(answer)
    content: list[Any] = []
    shown = answer
    if name == "python":
        shown, content = _without_images(answer)
    text = types.TextContent(type="text", text=json.dumps(shown, ensure_ascii=False))
    return types.CallToolResult(content=[text, *content], structured_content=answer)


def _encodable(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer that UTF-8 can say: commands choose names of files, and keys of values."""
    text = json.dumps(answer, ensure_ascii=False)
    made = plain(text)
    found: dict[str, Any] = answer if made == text else json.loads(made)
    return found


def _media(answer: dict[str, Any]) -> types.CallToolResult:
    """Return a file as the protocol shows it; its bytes are there once, and not in the structure too."""
    about = {name: answer[name] for name in ("path", "type", "size")}
    kind, data = answer["type"], answer["data"]
    shown: Any
    if kind.startswith("image/") and kind != "image/svg+xml":
        shown = types.ImageContent(type="image", data=data, mime_type=kind)
    elif kind.startswith("audio/"):
        shown = types.AudioContent(type="audio", data=data, mime_type=kind)
    else:
        blob = types.BlobResourceContents(uri=f"nsbox:{_quoted(answer['path'])}", mime_type=kind, blob=data)
        shown = types.EmbeddedResource(type="resource", resource=blob)
    text = types.TextContent(type="text", text=json.dumps(about, ensure_ascii=False))
    return types.CallToolResult(content=[text, shown], structured_content=about)


def _quoted(path: str) -> str:
    from urllib.parse import quote

    return quote(path, errors="surrogateescape")


def _without_images(answer: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return a Python record for the text, in which images are named alone, and the images by themselves."""
    images: list[Any] = []

    def bundle(found: dict[str, Any] | None) -> dict[str, Any] | None:
        if not found:
            return found
        kept = {}
        for kind, data in found.items():
            if kind in ("image/png", "image/jpeg", "image/gif", "image/webp") and isinstance(data, str):
                images.append(types.ImageContent(type="image", data=data, mime_type=kind))
                kept[kind] = f"image {len(images)}, which follows"
            else:
                kept[kind] = data
        return kept

    shown = {**answer, "displays": [bundle(one) for one in answer["displays"]], "mime": bundle(answer["mime"])}
    return shown, images
