"""How results look at the prompt: values and tracebacks as in Python's own, images by type and size, or as files."""

from __future__ import annotations

import base64
import binascii
import os
import re

from nsbox._base.display import printable
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from nsbox._python.result import PythonResult

_SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg", "image/gif": ".gif"}
_MOST_FILES = 10_000
_PLAIN = "text/plain"


def size_of(count: int) -> str:
    """Return a number of bytes, as "12 kB"."""
    return f"{count} B" if count < 1000 else f"{count / 1000:.0f} kB" if count < 10**6 else f"{count / 10**6:.1f} MB"


class Display:
    """Shows what a call of a kernel did."""

    def __init__(self, directory: str | None = None) -> None:
        """Open the directory for images, so that no command can exchange it; raises PolicyError if that fails.

        directory: None, to name images instead of saving them.
        """
        self._directory, self._fd, self._number = directory, -1, 0
        if directory is not None:
            try:
                self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise PolicyError("--save-images", f"{directory}: {error.strerror}") from None

    def lines(self, result: PythonResult) -> Iterator[str]:
        """Yield what is to be shown on standard output after what the code has printed."""
        for bundle in result.displays:
            yield from self._bundle(bundle)
        text = result.repr
        if text is not None and text != "None":
            yield text
        if result.mime:
            yield from self._images(result.mime)

    def _bundle(self, bundle: Mapping[str, Any]) -> Iterator[str]:
        images = [*self._images(bundle)]
        yield from images
        if not images and _PLAIN in bundle:
            yield str(bundle[_PLAIN])

    def _images(self, bundle: Mapping[str, Any]) -> Iterator[str]:
        for kind, content in bundle.items():
            if not kind.startswith("image/"):
                continue
            data = _bytes(kind, content)
            where = "" if self._fd < 0 else self._save(data, _SUFFIXES.get(kind, ".bin"))
            yield f"[{printable(kind)}, {size_of(len(data))}{where and ': ' + where}]"

    def _save(self, data: bytes, suffix: str) -> str:
        """Write an image to a new file; return its path, or why there is none."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        while self._number < _MOST_FILES:
            self._number += 1
            name = f"image-{self._number}{suffix}"
            try:
                fd = os.open(name, flags, 0o666, dir_fd=self._fd)
            except FileExistsError:
                continue
            except OSError as error:
                return f"not saved: {error.strerror}"
            try:
                with open(fd, "wb") as file:
                    file.write(data)
            except OSError as error:
                return f"not saved: {error.strerror}"
            return os.path.join(self._directory or "", name)
        return f"not saved: there are {_MOST_FILES} files already"

    def close(self) -> None:
        """Close the directory."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _bytes(kind: str, content: object) -> bytes:
    """Return the bytes of an image. A kernel says what it likes: what isn't base64 counts as text."""
    text = str(content)
    if kind != "image/svg+xml":
        try:
            return base64.b64decode(re.sub(r"\s", "", text), validate=True)
        except (binascii.Error, ValueError):
            pass
    return text.encode("utf-8", "replace")
