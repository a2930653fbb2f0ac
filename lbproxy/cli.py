"""The command line: parse, call, print.

Data goes to stdout and messages to stderr. Exit codes: 0 well, 1 what was asked about is bad, 2 wrong usage, 3 the
instance cannot be reached, 4 a reload was refused. Each command imports what it needs when it runs, so that `version`
does not wait for the event loop, nor `check` for the proxy.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from lbproxy import __version__
from lbproxy.control.client_options import add_commands as add_client_commands
from lbproxy.simulate.options import add_options as add_simulate_options

if TYPE_CHECKING:
    from lbproxy.core.spec import Config, PoolSpec

OK: Final = 0
BAD: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130  # as a shell reports SIGINT
PIPE_CLOSED: Final = 141  # as a shell reports SIGPIPE

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


class Stop(Exception):
    """Ends the command with a message and an exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise Stop(USAGE, f"{self.prog}: {message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _fill_standard_streams()
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except Stop as stop:
        return _fail(stop.code, str(stop))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _abandon_stdout()
        return PIPE_CLOSED
    except OSError as error:
        _abandon_stdout()
        return _fail(BAD, f"lbproxy: {error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except Exception as error:
        if os.environ.get("LBPROXY_TRACEBACK"):
            raise
        described = " ".join(f"{type(error).__name__}: {error}".split())
        return _fail(BAD, f"lbproxy: this is a bug: {described} (LBPROXY_TRACEBACK=1 shows where)")
    return code


def _fill_standard_streams() -> None:
    """Open /dev/null in the place of each standard stream that is closed, or the next file or socket would take its
    number, and what is printed would go there."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(descriptor, True)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # it stays open, as a standard stream does
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _run(argv: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a key may hold what the terminal cannot show
    parser, commands = _parser()
    word = next((word for word in argv if not word.startswith("-")), None)
    if word is not None and word not in commands:
        close = difflib.get_close_matches(word, commands, n=1)
        hint = f", did you mean {close[0]}?" if close else " (see lbproxy --help)"
        raise Stop(USAGE, f"lbproxy: there is no command {word}{hint}")
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as done:  # --help and --version have printed
        return int(done.code or 0)
    command: Callable[[argparse.Namespace], int] | None = getattr(arguments, "command", None)
    if command is None:
        parser.print_help(sys.stderr)
        return USAGE
    return command(arguments)


def _fail(code: int, message: str) -> int:
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        pass
    return code


def _abandon_stdout() -> None:
    """Let what stdout still holds go nowhere, so that the interpreter does not fail on it once more at its end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass


# What can be said


def _parser() -> tuple[argparse.ArgumentParser, Collection[str]]:
    """The parser and the names of the commands."""
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
    run.set_defaults(command=_run_proxy)

    demo = commands.add_parser(
        "demo",
        help="see it work on this machine",
        description="Backends, a proxy and traffic of many users on this machine; Ctrl-C ends it.",
    )
    demo.add_argument("--seconds", type=_positive, metavar="N", help="end after N seconds")
    demo.add_argument("--backends", type=_whole(1, 1000), metavar="N", default=3, help="how many backends (default 3)")
    demo.add_argument(
        "--port", type=_whole(0, 65535), metavar="P", help="the proxy's port (default: 8080, or a free one)"
    )
    demo.add_argument("--calm", action="store_true", help="no user that runs hot, no backend that dies")
    demo.set_defaults(command=_demo)

    check = commands.add_parser(
        "check",
        help="say everything that is wrong with a configuration",
        description="Say everything that is wrong with a configuration, and what of it a reload would not put in "
        "force. Nothing is started. An instance that answers at the Unix socket that the file names, or at --admin, is "
        "compared with; else everything is named that the file sets and only a restart changes.",
    )
    check.add_argument("file", nargs="?", metavar="FILE", help="the file, - for stdin")
    check.add_argument("--admin", metavar="ADDR", help="the instance to compare with: host:port or unix:/path")
    check.add_argument("--token-file", metavar="FILE", help="the token for --admin over TCP")
    _config_option(check)
    _json_option(check)
    check.set_defaults(command=_check)

    explain = commands.add_parser(
        "explain",
        help="who owns a key, who comes next, and why",
        description="Who owns a key, who comes next, and why; worked out from the file, no instance is asked.",
    )
    explain.add_argument("key", metavar="KEY", help="the key as text (put -- before one that begins with -)")
    explain.add_argument("--hex", action="store_true", help="KEY is given in hexadecimal")
    explain.add_argument("--pool", metavar="P", help="the pool, if there are several")
    _config_option(explain)
    _json_option(explain)
    explain.set_defaults(command=_explain)

    add_client_commands(commands.add_parser, _ask_instance, _config_option)

    simulate = commands.add_parser("simulate", help="run the core that routes on imagined or recorded traffic")
    add_simulate_options(simulate)
    simulate.set_defaults(command=_simulate)

    config = commands.add_parser(
        "config",
        help="show the configuration with every default filled in",
        description="Show the configuration with every default filled in. The output loads again to the same.",
    )
    config.add_argument("--resolved", action="store_true", help="with every default filled in (the only view there is)")
    _config_option(config)
    _json_option(config)
    config.set_defaults(command=_config)

    schema = commands.add_parser(
        "schema",
        help="print the JSON Schema of the configuration",
        description="Print the JSON Schema of the configuration, for editors.",
    )
    schema.set_defaults(command=_schema)

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
    export.set_defaults(command=_export_dashboards)

    version = commands.add_parser(
        "version",
        help="print the versions of lbproxy and of what it runs on",
        description="Print the versions of lbproxy and of what it runs on.",
    )
    _json_option(version)
    version.set_defaults(command=_version)
    return parser, commands.choices


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


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and least <= int(text[:9]) <= most:
            return int(text[:9])
        raise argparse.ArgumentTypeError(f"{text} is not a number from {least} to {most}")

    return read


# What is done


def _run_proxy(arguments: argparse.Namespace) -> int:
    path = _config_path(arguments.config)
    from lbproxy.control.config import ConfigError
    from lbproxy.server import run

    try:
        return run(path)
    except ConfigError as error:
        raise Stop(BAD, str(error)) from None


def _demo(arguments: argparse.Namespace) -> int:
    from lbproxy.demo.app import run

    return run(arguments.seconds, arguments.backends, arguments.port, arguments.calm)


def _check(arguments: argparse.Namespace) -> int:
    if arguments.file is not None and arguments.config is not None:
        raise Stop(USAGE, "lbproxy check: name the file once, as FILE or with -c")
    path = _config_path(arguments.config if arguments.file is None else arguments.file)
    from lbproxy.control.build import build
    from lbproxy.control.client import Failure, compared
    from lbproxy.control.config import ConfigError, read

    try:
        file = read(path)
        config = build(file, source=path)
    except ConfigError as error:
        if not arguments.json:
            raise Stop(BAD, str(error)) from None
        _print_json({"file": path, "ok": False, "problems": [problem.as_dict() for problem in error.problems]})
        return BAD
    try:
        restart = compared(arguments, file)
    except Failure as failure:
        raise Stop(failure.code, str(failure)) from None
    backends = sum(len(pool.backends) for pool in config.pools)
    counts = {"listeners": len(config.listeners), "pools": len(config.pools), "backends": backends}
    if arguments.json:
        _print_json({"file": path, "ok": True, "problems": [], **counts, "workers": config.workers, **restart})
        return OK
    parts = [f"{count} {noun if count != 1 else noun[:-1]}" for noun, count in counts.items()]
    print(f"{path}: ok: {', '.join(parts)}")
    if restart["needs_restart"]:
        names, instance = ", ".join(restart["needs_restart"]), restart["compared_with"]
        say = f"only a restart of the instance at {instance}" if instance else "once it runs, only a restart"
        print(f"{path}: {say} changes {names}")
    return OK


def _explain(arguments: argparse.Namespace) -> int:
    key = _key(arguments.key, arguments.hex)
    pool = _pool(_load(arguments.config), arguments.pool, "explain")
    from lbproxy.control.explain import explain, to_json, to_text

    found = explain(pool, key)
    if arguments.json:
        _print_json(to_json(found))
    else:
        sys.stdout.write(to_text(found))
    return OK


def _ask_instance(arguments: argparse.Namespace) -> int:
    from lbproxy.control.client import Failure, run

    try:
        return run(arguments, lambda: _known_config_path(arguments.config))
    except Failure as failure:
        raise Stop(failure.code, str(failure)) from None


def _simulate(arguments: argparse.Namespace) -> int:
    from lbproxy.simulate.command import Misused, run
    from lbproxy.simulate.record import Unusable

    pool, zone = None, ""
    if arguments.config is not None:
        config = _load(arguments.config)
        pool, zone = _pool(config, arguments.pool, "simulate"), config.zone
    try:
        return run(arguments, pool, zone)
    except Misused as error:
        raise Stop(USAGE, f"lbproxy simulate: {error}") from None
    except Unusable as error:
        raise Stop(BAD, f"lbproxy simulate: {error}") from None


def _config(arguments: argparse.Namespace) -> int:
    path = _config_path(arguments.config)
    from lbproxy.control.config import ConfigError, read
    from lbproxy.control.write import resolved, to_yaml

    try:
        fields = resolved(read(path))
    except ConfigError as error:
        raise Stop(BAD, str(error)) from None
    if arguments.json:
        _print_json(fields)
    else:
        sys.stdout.write(to_yaml(fields))
    return OK


def _schema(arguments: argparse.Namespace) -> int:
    from lbproxy.control.reference import json_schema

    _print_json(json_schema())
    return OK


def _export_dashboards(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from lbproxy.observe.dashboards import export

    written = [str(path) for path in export(Path(arguments.folder))]
    if arguments.json:
        _print_json({"files": written})
    else:
        print("\n".join(written))
    return OK


def _version(arguments: argparse.Namespace) -> int:
    import platform
    from importlib.metadata import version

    versions = {"lbproxy": __version__, "dataplane": _make(), "python": platform.python_version()}
    versions |= {name: version(name) for name in ("uvloop", "httptools", "xxhash")}
    if arguments.json:
        _print_json(versions)
    else:
        print("\n".join(f"{name} {number}" for name, number in versions.items()))
    return OK


def _make() -> str:
    """Whether the data plane is compiled, without running any of it."""
    from importlib.util import find_spec

    found = find_spec("lbproxy.dataplane.relay")
    return "interpreted" if found is None or (found.origin or "").endswith(".py") else "compiled"


def _config_path(given: str | None) -> str:
    path = _known_config_path(given)
    if path is not None:
        return path
    raise Stop(BAD, f"lbproxy: no configuration: neither {' nor '.join(CONFIG_PLACES)} exists, name one with -c FILE")


def _known_config_path(given: str | None) -> str | None:
    """The configuration that is meant, or None when none is named and none is where it usually is."""
    if given is not None:
        return "/dev/stdin" if given == "-" else given
    return next((place for place in CONFIG_PLACES if os.path.exists(place)), None)


def _load(given: str | None) -> Config:
    path = _config_path(given)
    from lbproxy.control.config import ConfigError, load

    try:
        return load(path)
    except ConfigError as error:
        raise Stop(BAD, str(error)) from None


def _pool(config: Config, name: str | None, command: str) -> PoolSpec:
    pools = {pool.name: pool for pool in config.pools}
    if name is None and len(pools) == 1:
        return config.pools[0]
    if name is None:
        raise Stop(USAGE, f"lbproxy {command}: there are several pools, name one with --pool: {', '.join(pools)}")
    if name not in pools:
        close = difflib.get_close_matches(name, pools, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(pools)}"
        raise Stop(USAGE, f"lbproxy {command}: no pool {name}, {hint}")
    return pools[name]


def _key(text: str, is_hex: bool) -> bytes:
    try:
        key = bytes.fromhex(text) if is_hex else os.fsencode(text)
    except ValueError:
        raise Stop(USAGE, f"lbproxy explain: {text} is not hexadecimal") from None
    if not key:
        raise Stop(USAGE, "lbproxy explain: the key is empty, and an empty key counts as a missing one")
    return key


def _print_json(value: Any) -> None:
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))
