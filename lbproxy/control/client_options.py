"""The command line of what talks to a running instance: what may be said.

Only what argparse needs is imported here, because the program's whole command line is built for every command.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

WHERE: Final = """\
The instance is found through the configuration's `admin` section (-c FILE, ./lbproxy.yaml or
/etc/lbproxy/lbproxy.yaml): its Unix socket if it is there, else its TCP address with its token_file.
--admin names another one.
"""

Add = Callable[..., argparse.ArgumentParser]


def add_commands(add: Add, config_option: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add every command; `add` is a subparsers' add_parser."""

    def command(name: str, help: str, description: str, **more: Any) -> argparse.ArgumentParser:
        parser = add(
            name,
            help=help,
            description=description,
            epilog=WHERE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **more,
        )
        config_option(parser)
        parser.add_argument("--admin", metavar="ADDR", help="the admin API: host:port, http://host:port or unix:/path")
        parser.add_argument("--token-file", metavar="FILE", help="holds the token for writing over TCP")
        parser.set_defaults(command="client", client=name)
        return parser

    reload = command(
        "reload",
        "have the instance read its configuration again",
        "Have the instance read its configuration again. Exit code 4: it was refused, and nothing has changed.",
    )
    _json(reload)

    diff = command(
        "diff",
        "what a configuration would change, and exactly which keys would move",
        "What FILE would change at the instance if it were in force, and exactly which keys would move from whom\n"
        "to whom. Without FILE: what a reload would do. If the instance cannot be asked, FILE is compared with the\n"
        "configuration that -c names.",
    )
    diff.add_argument("file", nargs="?", metavar="FILE", help="the configuration to try")
    diff.add_argument("--offline", action="store_true", help="compare the files alone, ask no instance")
    _json(diff)

    drain = command(
        "drain",
        "let a backend take no new keys",
        "Let a backend take no new keys. With session_drain its sessions stay until they are idle.",
    )
    _backend(drain)
    _decision(drain)
    drain.add_argument(
        "--wait", metavar="T", help="wait up to T, such as 5m, until it has nothing left and can be stopped"
    )
    drain.add_argument("--force", action="store_true", help="even if nobody would be left to serve")

    undrain = command("undrain", "take a drain back", "Take a drain back.")
    _backend(undrain)

    weight = command(
        "weight",
        "give a backend another weight than the file's",
        "Give a backend another weight than the file's, until that is taken back, its time is over or the file's\n"
        "weight changes. 0 drains it.",
    )
    _backend(weight)
    weight.add_argument("weight", metavar="N", help="the weight, or `file` to go by the file again")
    _decision(weight)
    weight.add_argument("--force", action="store_true", help="even if nobody would be left to serve")

    status = command("status", "how the instance and its backends stand", "How the instance and its backends stand.")
    status.add_argument("--watch", action="store_true", help="again and again, with what goes where now, until Ctrl-C")
    status.add_argument("--pool", metavar="P", help="this pool alone")
    _json(status)

    healthcheck = command(
        "healthcheck",
        "whether the instance is ready, as an exit code",
        "Whether the instance is ready: exit code 0 if it is, 1 if it is not, 3 if it cannot be reached.",
    )
    _json(healthcheck)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backend", metavar="B", help="the backend's name")
    parser.add_argument("--pool", metavar="P", help="its pool, if several have one of that name")
    _json(parser)


def _decision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--for", dest="ttl", metavar="T", help="how long, such as 10m; for good without it")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why, for everybody who looks")
