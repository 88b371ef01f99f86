"""The options of `nsbox python` that aren't about the policy."""

from __future__ import annotations

import argparse

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from nsbox._cli.parser import Parser


def add_options(parser: Parser) -> None:
    """Add the options that aren't about the policy, and the words after them."""
    topic = parser.topic("The code")
    topic.add_argument(
        "-c",
        dest="code",
        nargs=argparse.REMAINDER,
        metavar="CODE",
        help="run this code; what follows becomes sys.argv[1:]",
    )
    topic.add_argument("--python", metavar="PATH", help="the interpreter, as a path or a name such as python3.12")
    topic.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="NAME",
        help="import this module before the code, which finds it under its name; may be repeated",
    )
    topic.add_argument(
        "--audit", metavar="FILE", help="append a JSON record of the code to this file; without it, no code runs"
    )
    topic.add_argument("--overlay", action="store_true", help="throw away what changes in the workspace")
    topic.add_argument("--json", action="store_true", help="print the record of the run as JSON, and nothing else")
    topic.add_argument("--save-images", metavar="DIR", help="at the prompt, save images there instead of naming them")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="FILE", help="a program, or - for stdin, and its arguments"
    )
