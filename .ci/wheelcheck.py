"""Check a finished wheel: wheelcheck.py WHEEL CPU LIBC. It says what is wrong, in one line, and ends with status 1.

Auditwheel has looked at which C library the wheel needs, and abi3audit at which functions of Python's. Here: names and
tags, that all machine code is this processor's, that of the programs within the library too, and that no place of the
machine that built it is in there.
"""

import base64
import csv
import hashlib
import io
import json
import os
import re
import struct
import sys
import tempfile
import zipfile
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from elftools.elf.elffile import ELFFile

MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of <elf.h>
HEADER = b"\x7fELF\x02\x01\x01"
PLATFORMS = {"manylinux": r"manylinux_2_28_", "musllinux": r"musllinux_1_2_"}
PAGES = {"x86_64": 4096, "aarch64": 65536}  # the largest that a kernel for it may have
EMBEDDED = {  # what is machine code, and how many programs are bytes in it
    "nsbox/_nsbox.abi3.so": 3,  # init, session, branch
    "nsbox/nsbox-bwrap": 1,  # init
    "nsbox/nsbox-net": 0,
}


def wrong(what: str) -> None:
    """End with that."""
    sys.exit(f"wheelcheck: {what}")


def check_names(wheel: Path, archive: zipfile.ZipFile, cpu: str, libc: str) -> None:
    """Python's and the platform's tag, in the name and in the file WHEEL."""
    pattern = rf"nsbox-(.+)-cp311-abi3-({PLATFORMS[libc]}{cpu})\.whl"
    match = re.fullmatch(pattern, wheel.name)
    if match is None:
        wrong(f"{wheel.name} isn't named {pattern}")
    assert match is not None
    text = archive.read(f"nsbox-{match[1]}.dist-info/WHEEL").decode()
    if (
        re.findall(r"^Tag: (.*)$", text, re.MULTILINE) != [f"cp311-abi3-{match[2]}"]
        or "Root-Is-Purelib: false" not in text
    ):
        wrong(f"the tags in WHEEL aren't those of the name: {text!r}")


def check_record(archive: zipfile.ZipFile) -> None:
    """Each file is in RECORD, with its hash."""
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
    rows = {row[0]: row[1] for row in csv.reader(io.StringIO(archive.read(name).decode()))}
    if {*rows} != {*archive.namelist()}:
        wrong(f"RECORD has other names than the archive: {sorted({*rows} ^ {*archive.namelist()})}")
    for other, digest in rows.items():
        real = base64.urlsafe_b64encode(hashlib.sha256(archive.read(other)).digest()).rstrip(b"=").decode()
        if other != name and digest != f"sha256={real}":
            wrong(f"RECORD has another hash of {other}")


def check_programs(name: str, content: bytes, cpu: str) -> None:
    """What each program in a file is linked to, and that no page of its memory has code and data."""
    for found in re.finditer(re.escape(HEADER), content):
        program, page = ELFFile(io.BytesIO(content[found.start() :])), PAGES[cpu]
        kinds = {segment["p_type"] for segment in program.iter_segments()}
        is_static = found.start() > 0 or name == "nsbox/nsbox-bwrap"
        if is_static and program["e_type"] == "ET_EXEC" and kinds & {"PT_INTERP", "PT_DYNAMIC"}:
            wrong(f"the program at {found.start()} of {name} isn't static")
        if name == "nsbox/nsbox-bwrap" and program["e_type"] != "ET_EXEC":
            wrong(f"the program at {found.start()} of {name} is a {program['e_type']}")
        rights: dict[int, int] = {}
        for segment in program.iter_segments("PT_LOAD"):
            end = segment["p_vaddr"] + segment["p_memsz"]
            for number in range(segment["p_vaddr"] // page, -(-end // page)):
                if rights.setdefault(number, segment["p_flags"]) != segment["p_flags"]:
                    wrong(f"the program at {found.start()} of {name} has code and data on one page of {page} bytes")


def check_code(archive: zipfile.ZipFile, cpu: str, libc: str) -> None:
    """The extension, the relay, bwrap, and the programs that are bytes in them."""
    programs = {name: archive.read(name) for name in archive.namelist() if archive.read(name).startswith(HEADER)}
    if {*programs} != {*EMBEDDED}:
        wrong(f"machine code is in {sorted(programs)}")
    for name, content in programs.items():
        places = [found.start() for found in re.finditer(re.escape(HEADER), content)]
        if len(places) != 1 + EMBEDDED[name]:
            wrong(f"{name} contains {len(places) - 1} programs")
        machines = {struct.unpack_from("<H", content, place + 18)[0] for place in places}
        if machines != {MACHINES[cpu]}:
            wrong(f"{name} has code for the machines {machines}, not only for {MACHINES[cpu]}")
        check_programs(name, content, cpu)
        dynamic = ELFFile(io.BytesIO(content)).get_section_by_name(".dynamic")
        needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")} if dynamic is not None else set()
        allowed = (
            {"libc.so"}
            if libc == "musllinux"
            else {"libc.so.6", "libpthread.so.0", "ld-linux-aarch64.so.1", "ld-linux-x86-64.so.2"}
        )
        if needed - allowed:
            wrong(f"{name} needs {sorted(needed - allowed)}")
        for place in {
            tempfile.gettempdir(),
            os.path.expanduser("~"),
            os.fspath(Path(__file__).resolve().parents[1]),
        } - {"/"}:
            if f"{place}/nsbox-wheels".encode() in content or (
                place != tempfile.gettempdir() and f"{place}/".encode() in content
            ):
                wrong(f"{name} has a path below {place} in it")


def check_parts(archive: zipfile.ZipFile) -> None:
    """The list of components, and what the package needs beside its modules."""
    names = archive.namelist()
    (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    (sbom,) = (name for name in names if ".dist-info/sboms/" in name)
    # By the standard's own schema, which the library has with it.
    found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(archive.read(sbom).decode())
    if found is not None:
        wrong(f"the list of components isn't CycloneDX 1.6: {found}")
    number = re.findall(r"^Version: (.*)$", archive.read(metadata).decode(), re.MULTILINE)[0]
    if json.loads(archive.read(sbom))["metadata"]["component"]["version"] != number:
        wrong("the list of components is another version's")
    for name in ("nsbox/py.typed", "_nsbox_pytest.py"):
        if name not in names:
            wrong(f"there is no {name}")
    # Beside the commands, so that `man` finds them: pip puts them into PREFIX/share/man.
    data = sbom.partition(".dist-info/")[0] + ".data/data/share/man/man1/"
    pages = {name.removeprefix(data) for name in names if name.startswith(data)}
    if not {"nsbox.1", "nsbox-run.1"} <= pages:
        wrong(f"there are no manual pages in {data}: {sorted(pages)}")
    modes = {row.filename: row.external_attr >> 16 & 0o777 for row in archive.infolist()}
    for name in ("nsbox/nsbox-bwrap", "nsbox/nsbox-net"):
        if modes[name] != 0o755:
            wrong(f"{name} isn't executable")


def main(path: str, cpu: str, libc: str) -> None:
    """Check all of it."""
    with zipfile.ZipFile(path) as archive:
        check_names(Path(path), archive, cpu, libc)
        check_record(archive)
        check_code(archive, cpu, libc)
        check_parts(archive)


if __name__ == "__main__":
    main(*sys.argv[1:])
