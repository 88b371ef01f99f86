"""Put a list of components into a wheel (PEP 770): sbom.py WHEEL SDIST LIBC.

It is a CycloneDX file, .dist-info/sboms/nsbox.cdx.json. It says what is in the wheel beside nsbox itself: what the
compiler adds to programs, and with musl the C library of the relay, a static program.

The archive is written again, in the order of names and with one time, SOURCE_DATE_EPOCH. Its bytes depend on nothing
else.
"""

import base64
import csv
import hashlib
import io
import json
import os
import sys
import time
import uuid
import zipfile
from importlib.metadata import version
from pathlib import Path

Components = list[dict[str, object]]


def read(wheel: Path) -> dict[str, tuple[int, bytes]]:
    """Return each file of a wheel: its mode and its content."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            row.filename: (row.external_attr >> 16, archive.read(row)) for row in archive.infolist() if not row.is_dir()
        }


def write(wheel: Path, files: dict[str, tuple[int, bytes]], epoch: int) -> None:
    """Write a wheel whose bytes are those of its files, and of nothing else."""
    moment = time.gmtime(max(epoch, 315532800))[:6]  # a zip file's times begin with 1980
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        # By the rules of wheels .dist-info is at the end.
        for name in sorted(files, key=lambda name: (".dist-info/" in name, name)):
            mode, content = files[name]
            row = zipfile.ZipInfo(name, moment)
            row.create_system, row.compress_type = 3, zipfile.ZIP_DEFLATED
            row.external_attr = (0o100755 if mode & 0o100 else 0o100644) << 16
            archive.writestr(row, content)


def record(files: dict[str, tuple[int, bytes]], name: str) -> bytes:
    """Return the text of RECORD: each other file's hash and size."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for other in sorted(files):
        content = files[other][1]
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow((other, "", "") if other == name else (other, f"sha256={digest}", len(content)))
    return text.getvalue().encode()


def component(name: str, number: str, license_id: str, description: str) -> dict[str, object]:
    """Return what CycloneDX calls a component, of a library that isn't ours."""
    return {
        "type": "library",
        "bom-ref": f"{name}@{number}",
        "name": name,
        "version": number,
        "description": description,
        "licenses": [{"license": {"id": license_id}}],
    }


def bill(metadata: str, sdist: Path, libc: str, epoch: int) -> dict[str, object]:
    """Return the list of components of the wheel with this METADATA."""
    fields = dict(
        line.split(": ", 1)
        for line in metadata.partition("\n\n")[0].splitlines()
        if line.startswith(("Name: ", "Version: "))
    )
    name, number = fields["Name"], fields["Version"]
    zig = version("ziglang")
    own = f"pkg:pypi/{name}@{number}"
    inside: Components = [component("zig-compiler-rt", zig, "MIT", "helper functions of the compiler")]
    if libc == "musllinux":
        inside.append(component("musl", f"in zig {zig}", "MIT", "the C library of nsbox/nsbox-net, which is static"))
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"{own}?sha256={digest}&libc={libc}")
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": name,
                "version": number,
                "purl": own,
                "licenses": [{"license": {"id": "MIT"}}],
                "pedigree": {"notes": f"built from {sdist.name}, sha256 {digest}"},
            },
            "tools": {
                "components": [
                    {"type": "application", "name": tool, "version": version(tool)}
                    for tool in ("meson", "meson-python", "cffi", "ziglang", "auditwheel")
                ]
            },
        },
        "components": inside,
        "dependencies": [{"ref": own, "dependsOn": [row["bom-ref"] for row in inside]}],
    }


def main(path: str, source: str, libc: str) -> None:
    """Replace the wheel by one that has the list."""
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    files = read(Path(path))
    (metadata,) = (name for name in files if name.endswith(".dist-info/METADATA"))
    place = metadata.removesuffix("METADATA")
    for name in [name for name in files if name.startswith(f"{place}sboms/")]:
        del files[name]  # auditwheel's own, of libraries that it would have grafted
    text = json.dumps(bill(files[metadata][1].decode(), Path(source), libc, epoch), indent=2) + "\n"
    files[f"{place}sboms/nsbox.cdx.json"] = (0o644, text.encode())
    files[f"{place}RECORD"] = (0o644, b"")
    files[f"{place}RECORD"] = (0o644, record(files, f"{place}RECORD"))
    write(Path(path), files, epoch)


if __name__ == "__main__":
    main(*sys.argv[1:])
