"""What can be said on the command line.

Nothing but what argparse needs is imported here, because the program's whole command line is built for every command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import KeysView
from typing import TYPE_CHECKING, Final, NoReturn

from lbproxy import __version__
from lbproxy.control.client_options import add_commands as add_client_commands
from lbproxy.exits import USAGE, Stop
from lbproxy.simulate.options import add_options as add_simulate_options
from lbproxy.simulate.options import whole

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

CONFIG_PLACES: Final = ("lbproxy.yaml", "/etc/lbproxy/lbproxy.yaml")

_EXAMPLES: Final = """\
examples:
  lbproxy demo                          see it work: backends, a proxy and traffic on this machine
  lbproxy check lbproxy.yaml            say everything that is wrong with a file
  lbproxy run -c lbproxy.yaml           carry traffic
  lbproxy explain alice                 who owns the key alice, who comes next, and why
  lbproxy diff new.yaml                 what a configuration would change, and which keys would move
  lbproxy status --watch                how the running instance and its backends stand
  lbproxy drain b1 --wait 10m           take a backend out gently, and return when it can be stopped
  lbproxy simulate --hot 20%            what one user with a fifth of the traffic does to the others
  lbproxy config --resolved | less      the configuration with every default filled in
  lbproxy schema > lbproxy.schema.json  for editors
  lbproxy dashboards export grafana     the dashboards for Grafana, the rules for Prometheus

Without -c the configuration is ./lbproxy.yaml or /etc/lbproxy/lbproxy.yaml.
exit codes: 0 well, 1 what was asked about is bad, 2 wrong usage, 3 cannot reach the instance, 4 reload refused
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise Stop(USAGE, f"{self.prog}: {message} (see {self.prog} --help)")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Write --help and --version as everything is written: argparse hides that it could not."""
        (sys.stderr if file is None else file).write(message)


def make_parser() -> tuple[argparse.ArgumentParser, KeysView[str]]:
    """The parser and the names of the commands. What it parses says by `command` which code is meant: the command's own
    name, or "client" for all that ask a running instance."""
    parser = _Parser(
        prog="lbproxy",
        description="A layer-7 reverse proxy that keeps each user on one backend.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"lbproxy {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)

    run = commands.add_parser("run", help="carry traffic", description="Carry traffic until SIGTERM or SIGINT.")
    _config_option(run)
    run.set_defaults(command="run")

    demo = commands.add_parser(
        "demo",
        help="see it work on this machine",
        description="Backends, a proxy and traffic of many users on this machine; Ctrl-C ends it.",
    )
    demo.add_argument("--seconds", type=_positive, metavar="N", help="end after N seconds")
    demo.add_argument("--backends", type=whole(1, 1000), metavar="N", default=3, help="how many backends (default 3)")
    demo.add_argument(
        "--port", type=whole(0, 65535), metavar="P", help="the proxy's port (default: 8080, or a free one)"
    )
    demo.add_argument("--calm", action="store_true", help="no user that runs hot, no backend that dies")
    demo.set_defaults(command="demo")

    check = commands.add_parser(
        "check",
        help="say everything that is wrong with a configuration",
        description="Say everything that is wrong with a configuration, and what of it a reload would not put in "
        "force. Nothing is started. The files that it names are looked at as a start would need them, and left as they "
        "are; what only another user may do with them is a warning. An instance that answers at the Unix socket that "
        "the file names, or at --admin, is compared with; else everything is named that the file sets and only a "
        "restart changes.",
    )
    check.add_argument("file", nargs="?", metavar="FILE", help="the file, - for stdin")
    check.add_argument(
        "--no-files",
        action="store_true",
        help="leave out the files that it names, and whether all it needs is installed: for another machine",
    )
    check.add_argument("--admin", metavar="ADDR", help="the instance to compare with: host:port or unix:/path")
    check.add_argument("--token-file", metavar="FILE", help="the token for --admin over TCP")
    _config_option(check)
    _json_option(check)
    check.set_defaults(command="check")

    explain = commands.add_parser(
        "explain",
        help="who owns a key, who comes next, and why",
        description="Who owns a key, who comes next, and why: worked out from the file, or with --live or --admin as "
        "the running instance has it now, with what is down, full, drained, overridden and pinned.",
    )
    explain.add_argument("key", metavar="KEY", help="the key as text (put -- before one that begins with -)")
    explain.add_argument("--hex", action="store_true", help="KEY is given in hexadecimal")
    explain.add_argument("--pool", metavar="P", help="the pool, if there are several")
    explain.add_argument("--live", action="store_true", help="ask the instance that the configuration names")
    explain.add_argument("--admin", metavar="ADDR", help="ask this instance: host:port or unix:/path")
    _config_option(explain)
    _json_option(explain)
    explain.set_defaults(command="explain", client="explain", token_file=None)

    add_client_commands(commands.add_parser, _config_option)

    simulate = commands.add_parser("simulate", help="run the core that routes on imagined or recorded traffic")
    add_simulate_options(simulate)
    simulate.set_defaults(command="simulate")

    config = commands.add_parser(
        "config",
        help="show the configuration with every default filled in",
        description="Show the configuration with every default and variable filled in, secrets too. The output loads "
        "again to the same, unless secrets are hidden.",
    )
    config.add_argument("--resolved", action="store_true", help="with every default filled in (the only view there is)")
    config.add_argument(
        "--hide-secrets",
        action="store_true",
        help="without cookie secrets and what the headers of checks say, to be shown",
    )
    _config_option(config)
    _json_option(config)
    config.set_defaults(command="config")

    schema = commands.add_parser(
        "schema",
        help="print the JSON Schema of the configuration",
        description="Print the JSON Schema of the configuration, for editors.",
    )
    schema.add_argument("--json", action="store_true", help="as it is anyway")
    schema.set_defaults(command="schema")

    dashboards = commands.add_parser(
        "dashboards",
        help="write out the Grafana dashboards and Prometheus rules",
        description="The Grafana dashboards and Prometheus rules that belong to this version.",
    )
    actions = dashboards.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=_Parser)
    export = actions.add_parser(
        "export",
        help="write them into a folder",
        description="Write the dashboards into DIR and the rules into DIR/rules, over what may be there.",
    )
    export.add_argument("folder", metavar="DIR", help="the folder; it is made if it is not there")
    _json_option(export)
    export.set_defaults(command="dashboards")

    version = commands.add_parser(
        "version",
        help="print the versions of lbproxy and of what it runs on",
        description="Print the versions of lbproxy and of what it runs on.",
    )
    _json_option(version)
    version.set_defaults(command="version")
    return parser, commands.choices.keys()


def _config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--config", metavar="FILE", help=f"the configuration (default {' or '.join(CONFIG_PLACES)})"
    )


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value
