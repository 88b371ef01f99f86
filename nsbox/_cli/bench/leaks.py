"""The part about leaks: how fast one thread scans text for tokens, and redacts known secrets in it.

The text has lines such as servers, compilers, package managers and tests print. Among them are long paths, digests,
base64 of digests, and URLs with escapes: a scan for encoded tokens has to tell these from tokens.
"""

from __future__ import annotations

import base64
import hashlib
import random
import time
from collections.abc import Callable

from nsbox._cli.bench.parts import Bench, Subject, interleave
from nsbox._cli.bench.results.stats import Part

_SIZE = 1 << 20  # bytes
_PIECE = 1 << 16  # bytes, as read from a pipe
_SECRETS = 10


def _line(i: int) -> str:
    """Return the i-th line; lines repeat in form, not in content."""
    digest = hashlib.sha512(b"%d" % i).digest()
    name, when = digest.hex(), f"2025-11-{i % 28 + 1:02d}T12:{i % 60:02d}:{i * 7 % 60:02d}.{i % 1000:03d}Z"
    uuid = "-".join((name[:8], name[8:12], name[12:16], name[16:20], name[20:32]))
    forms = (
        f'{when} INFO server: GET /v1/users/{i}?page={i % 9}&q=two%20words HTTP/1.1 200 {i * 13} "Mozilla/5.0 (X11)"',
        f"{when} DEBUG task-{name[:8]} took {i % 977} ms; disk-usage of /var/lib/docker/overlay2/{name[:64]}/merged",
        f"commit {name[:40]} Author: Some One <some.one@example.com> Merge branch 'feature/with-a-long-name-{i}'",
        f'  File "/usr/lib/python3/dist-packages/engine/default_{i % 99}.py", line {i}, in do_execute_no_params',
        f"npm http fetch GET 200 https://npm.example/a/-/a-1.{i}.tgz sha512-{base64.b64encode(digest).decode()}",
        f"gcc -O2 -Wall -Iinclude -c src/modules/network/socket_{i}.c -o build/obj/modules/network/socket_{i}.o",
        f"tests/pure/test_policy.py::test_that_is_said_at_length[{i}-workspace] PASSED [ {i % 100}%]",
        f"{when} WARN auth: request id={uuid} from 10.0.{i % 256}.{i * 3 % 256} retried after {i % 30}.{i % 10} s",
    )
    return forms[i % len(forms)]


def log(size: int) -> bytes:
    """Return this many bytes of lines."""
    lines, have, i = [], 0, 0
    while have < size:
        lines.append(_line(i).encode() + b"\n")
        have += len(lines[-1])
        i += 1
    return b"".join(lines)[:size]


def _rating(name: str, work: Callable[[], object]) -> Subject:
    """Return the subject of one pass over the text, in megabytes a second."""

    def measure() -> tuple[float]:
        begin = time.perf_counter()
        work()
        return (_SIZE / (time.perf_counter() - begin) / 1e6,)

    return Subject((name,), measure)


def leaks(bench: Bench) -> Part:
    """Measure scan() and Scrubber."""
    from nsbox.leaks import Scrubber, scan

    rng, scale = random.Random(0), bench.scale
    text = log(_SIZE)
    secrets = [f"sk-ant-api03-{rng.randbytes(60).hex()}" for _ in range(_SECRETS)]
    scrubber = Scrubber(secrets)
    encoded = base64.encodebytes(text)[:_SIZE]

    def scrub() -> None:
        for at in range(0, _SIZE, _PIECE):
            scrubber.feed(text[at : at + _PIECE])
        scrubber.flush()

    subjects = [
        _rating("scan, plain only", lambda: scan(text, depth=0)),
        _rating("scan", lambda: scan(text)),
        _rating("scan, all of it in base64", lambda: scan(encoded)),
        _rating(f"scrub, {_SECRETS} secrets", scrub),
    ]
    rows = interleave(subjects, scale.file_rounds, min(2, scale.warmup), bench.rng)
    part = Part("leaks", f"{_SIZE >> 20} MiB of a log, one thread; {scale.file_rounds} rounds", "MB/s", rows)
    part.compare((name, "scan, plain only") for name in ("scan", "scan, all of it in base64"))
    return part
