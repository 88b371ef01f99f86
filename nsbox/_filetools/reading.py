"""Reading files: as text, by lines, as attachments, and as media."""

from __future__ import annotations

import codecs
import contextlib
import datetime
import io
import mimetypes
import os
import stat

from nsbox._base.checks import check_size, is_iterable
from nsbox._base.errors import AccessError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._files.files import open_beneath
from nsbox._filetools.files import DIRECTORY, check_number
from nsbox._filetools.ground import NO_SYMLINKS
from nsbox._filetools.records import Attachment, Binary, Lines, Media
from nsbox._filetools.walk import counted
from nsbox._tools.arguments import check_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import IO, Any

    from nsbox._filetools.files import Files, Path

_MOST_CHARS = 64 << 20  # that read() and read_lines() return
_MOST_TOOLS = 100_000  # that tools() looks at
_LONGEST = 2000  # characters of a line that read_lines() shows
_MOST_SCANNED = 4 << 30  # bytes that read_lines() reads
_MOST_COUNTED = 64 << 20  # bytes that it reads after the last line that is asked for, to count lines
_CHUNK = 1 << 20
_MOST_LINES = 10**9


def opened(files: Files, path: Path, mode: str, **options: Any) -> IO[Any]:
    """Open a file for reading."""
    if mode not in ("r", "rb"):
        raise ValueError(f"mode is {mode!r}, must be 'r' or 'rb'; write() replaces files as a whole")
    file = open(files.opened_file(path), "rb")  # noqa: SIM115 - it is the caller's
    try:
        return file if mode == "rb" else io.TextIOWrapper(file, **options)
    except BaseException:
        file.close()
        raise


def read(files: Files, path: Path, max_chars: int, encoding: str, errors: str) -> str:
    """Return the beginning of a text file."""
    check_number("max_chars", max_chars, _MOST_CHARS)
    with opened(files, path, "r", encoding=encoding, errors=errors, newline="") as file:
        try:
            text: str = file.read(max_chars)
        except UnicodeDecodeError as error:
            raise _no_text(path, encoding, error) from None
    return text


def _no_text(path: Path, encoding: str, error: UnicodeDecodeError) -> ValueError:
    what = f"{os.fspath(path)} isn't {encoding} text (byte {error.object[error.start]:#04x})"
    return ValueError(f"{what}; errors='replace' reads it anyway, and open(path, 'rb') reads bytes")


# ---- lines


class _Line:
    """A line that comes in pieces. Only the part that will be shown is kept."""

    def __init__(self) -> None:
        self.data, self.is_cut = bytearray(), False

    def add(self, piece: bytes) -> None:
        room = 4 * _LONGEST + 4 - len(self.data)
        self.data += piece[:room]
        self.is_cut = self.is_cut or len(piece) > room

    def text(self, encoding: str, errors: str) -> tuple[str, bool]:
        text = codecs.getincrementaldecoder(encoding)(errors).decode(bytes(self.data), final=not self.is_cut)
        is_cut = self.is_cut or len(text) > _LONGEST
        return (f"{text[:_LONGEST]} [... the line goes on]" if is_cut else text.removesuffix("\r")), is_cut


def _chunks(file: IO[bytes], encoding: str, errors: str) -> Iterator[bytes]:
    """Yield the contents in an encoding in which each newline is the byte 0x0a, and each such byte a newline."""
    if "\n".encode(encoding) == b"\n":
        while chunk := file.read(_CHUNK):
            yield chunk
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    while chunk := file.read(_CHUNK):
        if text := decoder.decode(chunk):
            yield text.encode("utf-8", "surrogatepass")
    if text := decoder.decode(b"", final=True):
        yield text.encode("utf-8", "surrogatepass")


class _Reader:
    """Collects the lines that were asked for, and counts the others.

    newlines: how many have come so far. is_full: whether further lines are only counted.
    """

    def __init__(self, offset: int, limit: int, max_chars: int, encoding: str, errors: str, *, numbers: bool) -> None:
        self._first, self._skipped = offset, offset - 1
        self._limit, self._left, self._numbers = limit, max_chars, numbers
        self._encoding, self._errors = encoding, errors
        self._line = _Line()
        self.rows: list[str] = []
        self.newlines = 0
        self.is_truncated = self.is_open = False
        self.is_full = limit == 0

    def take(self, chunk: bytes) -> None:
        """Take the next part of the file."""
        at = 0
        if self._skipped:
            count = min(chunk.count(b"\n"), self._skipped)
            self._skipped -= count
            self.newlines += count
            if self._skipped:
                self.is_open = not chunk.endswith(b"\n")
                return
            for _ in range(count):
                at = chunk.index(b"\n", at) + 1
        while at < len(chunk) and not self.is_full:
            end = chunk.find(b"\n", at)
            self._line.add(chunk[at:] if end < 0 else chunk[at:end])
            at = len(chunk) if end < 0 else end + 1
            if end >= 0:
                self.newlines += 1
                self._add()
        self.is_truncated = self.is_truncated or at < len(chunk)
        self.newlines += chunk.count(b"\n", at)
        self.is_open = not chunk.endswith(b"\n")

    def end(self, *, is_whole: bool) -> None:
        """Take the rest: a last line without a newline, or one that wasn't read to its end."""
        self._line.is_cut = self._line.is_cut or not is_whole
        if self.is_open and not self.is_full and not self._skipped:
            self._add()

    def _add(self) -> None:
        line, is_cut = self._line.text(self._encoding, self._errors)
        number = self._first + len(self.rows)
        row = f"{number:6}\t{line}\n" if self._numbers else f"{line}\n"
        self._line = _Line()
        if len(row) > self._left:
            self.is_full = self.is_truncated = True
            return
        self.rows.append(row)
        self._left -= len(row)
        self.is_full = len(self.rows) == self._limit
        self.is_truncated = self.is_truncated or is_cut


def read_lines(
    files: Files, path: Path, offset: int, limit: int, *, numbers: bool, max_chars: int, encoding: str, errors: str
) -> Lines:
    """Return some lines of a text file."""
    check_number("offset", offset, _MOST_LINES, least=1)
    check_number("limit", limit)
    check_number("max_chars", max_chars, _MOST_CHARS, least=4 * _LONGEST)
    shown = os.fspath(path)
    is_plain = "\n".encode(encoding) == b"\n"
    inner, rules = (encoding, errors) if is_plain else ("utf-8", "surrogatepass")
    reader = _Reader(offset, limit, max_chars, inner, rules, numbers=numbers)
    with opened(files, path, "rb") as file:
        try:
            is_whole = _collect(reader, file, encoding, errors)
        except UnicodeDecodeError as error:
            raise _no_text(path, encoding, error) from None
    total = reader.newlines + reader.is_open if is_whole else None
    last = offset + len(reader.rows) - 1
    return Lines(shown, "".join(reader.rows), offset, last, total, reader.is_truncated or total is None)


def _collect(reader: _Reader, file: IO[bytes], encoding: str, errors: str) -> bool:
    """Give the file to the reader; return whether it was read to its end."""
    full_at, is_whole = -1, True
    for chunk in _without_bom(_chunks(file, encoding, errors)):
        reader.take(chunk)
        at = file.tell()
        full_at = at if reader.is_full and full_at < 0 else full_at
        if at > _MOST_SCANNED or (full_at >= 0 and at - full_at > _MOST_COUNTED):
            is_whole = not file.read(1)
            break
    reader.end(is_whole=is_whole)
    return is_whole


def _without_bom(chunks: Iterator[bytes]) -> Iterator[bytes]:
    for first in chunks:
        if rest := first.removeprefix(codecs.BOM_UTF8):
            yield rest
        break
    yield from chunks


# ---- attachments, and programs


def chosen(paths: Iterable[Path]) -> list[Path]:
    """Return the paths as a list. Raises TypeError for what isn't a sequence of paths."""
    if isinstance(paths, str | bytes | os.PathLike):
        raise TypeError("paths is one path, must be a sequence of them")
    if not is_iterable(paths):
        raise TypeError(f"paths is {paths!r:.60}, must be a sequence of paths")
    found = list(paths)
    for path in found:
        check_path("a path in paths", path)
    return found


def attach(
    files: Files, paths: Sequence[Path], max_count: int, max_bytes: int | str, suffixes: Sequence[str]
) -> list[Attachment]:
    """Return files with their contents."""
    most = check_size("max_bytes", max_bytes)
    is_list = is_iterable(suffixes) and not isinstance(suffixes, str)
    if not is_list or not all(isinstance(end, str) and end.startswith(".") for end in suffixes):
        raise ValueError(f"suffixes is {suffixes!r}, must be a sequence such as ['.md']")
    check_number("max_count", max_count)
    if len(paths) > max_count:
        raise ValueError(f"{len(paths)} files are too many: {max_count} at most")
    ends = tuple(suffix.lower() for suffix in suffixes)
    attachments = []
    for path in paths:
        shown = os.fspath(path)
        if ends and not shown.lower().endswith(ends):
            raise AccessError(shown, f"has no suffix that can be attached: {', '.join(ends)}")
        data = contents(files, path, most, "to be attached")
        attachments.append(Attachment(os.path.basename(os.path.normpath(shown)), shown, len(data), data))
    return attachments


def contents(files: Files, path: Path, most: int, purpose: str) -> bytes:
    """Return what is in a file; raises AccessError if that is more than `most` bytes, or than the rules allow."""
    shown = os.fspath(path)
    with opened(files, path, "rb") as file:
        data: bytes = file.read(most + 1)  # it may grow meanwhile
        files.view.check_size(files.target(path, write=False).inside, len(data), shown)
    if len(data) > most:
        raise AccessError(shown, f"is too large {purpose}: {most} bytes at most")
    return data


def tools(files: Files) -> list[Binary]:
    """List the programs in tools_bin."""
    if files.policy.tools_bin is None:
        return []
    found = []
    shown = files.policy.tools_bin
    fd = open_beneath(-1, shown, DIRECTORY, NO_SYMLINKS)
    try:
        with os.scandir(fd) as scanned:
            for entry in counted(
                scanned, _MOST_TOOLS, shown, "tools_bin is for a few programs; point it at a smaller directory"
            ):
                with contextlib.suppress(OSError):  # a dangling link, or it has just gone
                    st = os.stat(entry.name, dir_fd=fd)
                    if stat.S_ISREG(st.st_mode) and st.st_mode & 0o111:
                        changed = datetime.datetime.fromtimestamp(st.st_mtime, datetime.UTC)
                        found.append(Binary(entry.name, st.st_size, changed))
    finally:
        os.close(fd)
    return sorted(found, key=lambda binary: binary.name)


# ---- media

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"\0\0\1\0", "image/vnd.microsoft.icon"),
    (b"%PDF-", "application/pdf"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"BZh", "application/x-bzip2"),
    (b"\xfd7zXZ\0", "application/x-xz"),
    (b"(\xb5/\xfd", "application/zstd"),
    (b"\x7fELF", "application/x-executable"),
    (b"SQLite format 3\0", "application/vnd.sqlite3"),
)
_RIFF = {b"WAVE": "audio/wav", b"WEBP": "image/webp", b"AVI ": "video/x-msvideo"}
_BOXES = {b"avif": "image/avif", b"heic": "image/heic", b"M4A ": "audio/mp4", b"qt  ": "video/quicktime"}
_ZIPPED = ("application/vnd.", "application/epub", "application/java")  # formats whose files are ZIP files
_NAMES = mimetypes.MimeTypes(filenames=())  # the table of the standard library, not this machine's files
for _end, _kind in {  # what it lacks before Python 3.14
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".epub": "application/epub+zip",
    ".odt": "application/vnd.oasis.opendocument.text",
}.items():
    _NAMES.add_type(_kind, _end)


def mime_type(data: bytes, name: str) -> str:
    """Return the MIME type of a file by its contents or, if they don't tell, by its name."""
    by_name = _NAMES.guess_type(name)[0]
    if data.startswith(b"RIFF") and data[8:12] in _RIFF:
        return _RIFF[data[8:12]]
    if data[4:8] == b"ftyp":
        return _BOXES.get(data[8:12], "video/mp4")
    for signature, kind in _SIGNATURES:
        if data.startswith(signature):
            is_named = kind == "application/zip" and by_name is not None and by_name.startswith(_ZIPPED)
            return by_name if is_named and by_name is not None else kind
    is_text = b"\0" not in data[:8192] and _is_utf8(data[:8192])
    if by_name is not None and is_text == (by_name.startswith("text/") or by_name in _TEXTS):
        return by_name
    return "text/plain" if is_text else "application/octet-stream"


_TEXTS = ("application/json", "application/javascript", "application/xml", "image/svg+xml", "application/x-sh")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(data) - 4  # a character at the end is cut
    return True


def media(files: Files, path: Path, max_bytes: int | str) -> Media:
    """Return a file with its MIME type."""
    most = check_size("max_bytes", max_bytes)
    data = contents(files, path, most, "to be returned")
    shown = os.fspath(path)
    return Media(shown, mime_type(data, os.path.basename(shown)), len(data), data)
