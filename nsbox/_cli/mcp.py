"""`nsbox mcp`: an MCP server on stdin and stdout. Its options, and what they mean."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from nsbox._base.frozen import TYPE_CHECKING
from nsbox._cli.messages import say
from nsbox._cli.parser import Parser
from nsbox._cli.policy import policy_of, record_of
from nsbox._paths.user_homes import check_workspace
from nsbox._popen.story import Attempt

if TYPE_CHECKING:
    from nsbox._policy.policy import Policy

_PACKAGES = ("mcp", "mcp_types", "anyio", "pydantic")


def add_options(parser: Parser) -> None:
    """Add the options that aren't about the policy, except --timeout and --grace."""
    parser.topic("Tool calls").add_argument(
        "--audit", metavar="FILE", help="append a JSON record of each call to this file; without it, no call starts"
    )
    topic = parser.topic("The client")
    topic.add_argument(
        "--client-roots",
        choices=("narrow", "allow", "ignore"),
        default="narrow",
        help="what the client's roots mean. narrow (default): commands can write only to what is in both the policy "
        "and the roots. allow: the roots are the workspace. ignore: nothing",
    )
    topic.add_argument(
        "--ask-network",
        action="store_true",
        help="let the client ask its user about connections that the policy doesn't mention",
    )


def main(options: argparse.Namespace) -> int:
    """Serve one client until it closes stdin; return the exit status: 0, or 128+N after signal N."""
    record_of(options)
    with Attempt("sandbox"):
        policy = policy_of(options)
    try:
        from nsbox._mcp.server import serve
        from nsbox._mcp.wishes import Wishes
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        say('`nsbox mcp` needs the official MCP SDK, version 2.3 or later: pip install "nsbox[mcp]"')
        return 125

    def policy_for(roots: Sequence[str]) -> Policy:
        first, *more = roots
        for root in more:  # the client has named these, not the operator
            check_workspace(root, policy.write)
        if options.policy is not None:
            made = policy_of(argparse.Namespace(**{**vars(options), "workspace": first}), is_fallback=True)
            return made.with_(write=(*made.write, *more))
        wishes = {"workspace": first, "write": [*options.write, *more]}
        return policy_of(argparse.Namespace(**{**vars(options), **wishes}))

    return serve(
        Wishes(
            policy=policy,
            policy_for=policy_for,
            roots=options.client_roots,
            asks_network=options.ask_network,
            timeout=options.timeout,
            grace=options.grace,
        )
    )
