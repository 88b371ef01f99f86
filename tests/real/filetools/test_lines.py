"""Reading by lines, and media: what is shown, what is cut, and how little of a huge file is held."""

from __future__ import annotations

import base64
import json
import os
import tracemalloc
from pathlib import Path

import pytest

from nsbox import AccessError, Sandbox


def test_numbered_like_cat(box: Sandbox, ws: Path) -> None:
    """The text is what `cat -n` prints, from any line on."""
    (ws / "file").write_text("".join(f"line {i}\n" for i in range(1, 31)))
    lines = box.read_lines("file")
    assert lines.text == box.check_output(["cat", "-n", "file"], text=True)
    assert (lines.first, lines.last, lines.total, lines.is_truncated) == (1, 30, 30, False)
    some = box.read_lines("file", 10, 3)
    assert some.text == "    10\tline 10\n    11\tline 11\n    12\tline 12\n"
    assert (some.first, some.last, some.total, some.is_truncated) == (10, 12, 30, True)
    assert box.read_lines("file", 30, numbers=False).text == "line 30\n"
    beyond = box.read_lines("file", 31)
    assert (beyond.text, beyond.first, beyond.last, beyond.total, beyond.is_truncated) == ("", 31, 30, 30, False)
    assert json.loads(json.dumps(some.as_dict()))["last"] == 12


@pytest.mark.parametrize(
    ("data", "encoding", "texts"),
    [
        (b"", "utf-8", []),
        (b"no end", "utf-8", ["no end"]),
        (b"a\r\nb\r\n", "utf-8", ["a", "b"]),
        (b"\n\n", "utf-8", ["", ""]),
        (b"\xef\xbb\xbfbom\n", "utf-8", ["bom"]),
        ("äö\nü".encode("latin-1"), "latin-1", ["äö", "ü"]),
        ("ä\nö\n".encode("utf-16"), "utf-16", ["ä", "ö"]),
        ("ĊĊ\nĊ".encode("utf-16-le"), "utf-16-le", ["ĊĊ", "Ċ"]),  # U+010A, whose bytes have a 0x0A
    ],
)
def test_line_ends_and_encodings(box: Sandbox, ws: Path, data: bytes, encoding: str, texts: list[str]) -> None:
    (ws / "file").write_bytes(data)
    lines = box.read_lines("file", numbers=False, encoding=encoding)
    assert lines.text == "".join(f"{text}\n" for text in texts)
    assert (lines.total, lines.is_truncated) == (len(texts), False)


def test_what_is_no_text(box: Sandbox, ws: Path) -> None:
    """An error names the byte; only lines that are shown are decoded."""
    (ws / "file").write_bytes(b"good\nb\xffd\n")
    assert box.read_lines("file", limit=1).text == "     1\tgood\n"
    with pytest.raises(ValueError, match=r"file isn't utf-8 text \(byte 0xff\); errors='replace'"):
        box.read_lines("file")
    assert box.read_lines("file", 2, errors="replace", numbers=False).text == "b\ufffdd\n"


def test_long_lines_are_cut(box: Sandbox, ws: Path) -> None:
    (ws / "file").write_text("ä" * 5000 + "\nshort\n")
    lines = box.read_lines("file", numbers=False)
    assert lines.text == "ä" * 2000 + " [... the line goes on]\nshort\n"
    assert (lines.total, lines.is_truncated) == (2, True)


def test_max_chars(box: Sandbox, ws: Path) -> None:
    """No more lines than fit; the next offset is last + 1."""
    (ws / "file").write_text("x" * 999 + "\n" + ("y" * 999 + "\n") * 99)
    lines = box.read_lines("file", numbers=False, max_chars=8000)
    assert (len(lines.text), lines.last, lines.total, lines.is_truncated) == (8000, 8, 100, True)
    assert box.read_lines("file", lines.last + 1, numbers=False).text.startswith("y")


def test_huge_files(box: Sandbox, ws: Path) -> None:
    """A line of 1 GB, and a hole of 2 GB after some lines, cost a few megabytes of memory."""
    with open(ws / "line", "wb") as file:
        file.write(b"begin")
        file.truncate(1 << 30)
    with open(ws / "hole", "wb") as file:
        file.write(b"one\ntwo\n")
        file.truncate(2 << 30)
    tracemalloc.start()
    try:
        line = box.read_lines("line")
        hole = box.read_lines("hole", limit=2)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert line.text.startswith("     1\tbegin\0") and line.text.endswith("[... the line goes on]\n")
    assert (line.last, line.total, line.is_truncated) == (1, 1, True)
    assert (hole.text, hole.total, hole.is_truncated) == ("     1\tone\n     2\ttwo\n", None, True)


@pytest.mark.parametrize("wrong", [{"offset": 0}, {"limit": -1}, {"max_chars": 10}, {"offset": True}])
def test_wrong_numbers(box: Sandbox, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be a number from \d+ to \d+"):
        box.read_lines("sub/file", **wrong)


def test_the_rules_hold(box: Sandbox) -> None:
    for path in ("hidden/file", "out/file", "link", "/etc/passwd"):
        with pytest.raises(AccessError):
            box.read_lines(path)
        with pytest.raises(AccessError):
            box.media(path)


# ---- media

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.txt", PNG, "image/png"),
        ("a", b"\xff\xd8\xff\xe0", "image/jpeg"),
        ("a", b"GIF89a", "image/gif"),
        ("a", b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        ("a", b"RIFF\0\0\0\0WAVEfmt ", "audio/wav"),
        ("a", b"%PDF-1.7", "application/pdf"),
        ("a", b"\0\0\0\x18ftypisom", "video/mp4"),
        ("a.docx", b"PK\x03\x04", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        ("a.zip", b"PK\x03\x04", "application/zip"),
        ("a.svg", b"<svg/>", "image/svg+xml"),
        ("a.html", b"<p>", "text/html"),
        ("a.png", b"no picture", "text/plain"),
        ("a", b"\0\1\2", "application/octet-stream"),
        ("a", b"", "text/plain"),
    ],
)
def test_media_types(box: Sandbox, ws: Path, name: str, data: bytes, kind: str) -> None:
    """The contents decide; where they don't say, the name does, unless it contradicts them."""
    (ws / name).write_bytes(data)
    assert box.media(name).type == kind


def test_media(box: Sandbox, ws: Path) -> None:
    (ws / "a.png").write_bytes(PNG)
    media = box.media("a.png")
    assert (media.path, media.size, media.data, media.is_image) == ("a.png", len(PNG), PNG, True)
    assert media.data_url() == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert json.loads(json.dumps(media.as_dict()))["data"] == media.base64()
    assert "PNG" not in repr(media)
    os.truncate(ws / "a.png", 1 << 40)
    with pytest.raises(AccessError, match=r"a.png is too large to be returned: 1048576 bytes at most"):
        box.media("a.png", max_bytes="1M")
