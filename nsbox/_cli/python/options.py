"""The options of `nsbox python` that aren't about the policy."""

from __future__ import annotations

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that aren't about the policy, and the words after them."""
    parser.add_argument(
        "-c",
        dest="code",
        nargs=argparse.REMAINDER,
        metavar="CODE",
        help="run this code; what follows becomes sys.argv[1:]",
    )
    parser.add_argument("--python", metavar="PATH", help="the interpreter, as a path or a name such as python3.12")
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="NAME",
        help="import this module before the code, which finds it under its name; may be repeated",
    )
    parser.add_argument("--overlay", action="store_true", help="throw away what changes in the workspace")
    parser.add_argument("--json", action="store_true", help="print the record of the run as JSON, and nothing else")
    parser.add_argument("--save-images", metavar="DIR", help="at the prompt, save images there instead of naming them")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="FILE ...", help="a program, or -, and its arguments"
    )
