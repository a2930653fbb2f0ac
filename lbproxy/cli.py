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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from lbproxy import __version__
from lbproxy.command_line import CONFIG_PLACES, make_parser
from lbproxy.exits import BAD, INTERRUPTED, OK, PIPE_CLOSED, USAGE, Stop

if TYPE_CHECKING:
    from lbproxy.control.problems import ConfigError, Problem
    from lbproxy.core.spec import Config, PoolSpec

_STDIN: Final = "/dev/stdin"  # the file that is named -


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
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # it stays open, as a standard stream does
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _run(argv: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a key may hold what the terminal cannot show
    parser, commands = make_parser()
    word = next((word for word in argv if not word.startswith("-")), None)
    if word is not None and word not in commands:
        if argv[0].startswith("-") and not commands.isdisjoint(argv):
            raise Stop(USAGE, f"lbproxy: name the command before {argv[0]} (see lbproxy --help)")
        close = difflib.get_close_matches(word, commands, n=1)
        hint = f", did you mean {close[0]}?" if close else " (see lbproxy --help)"
        raise Stop(USAGE, f"lbproxy: there is no command {word}{hint}")
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as done:  # --help and --version have printed
        return int(done.code or 0)
    if "command" not in arguments:
        parser.print_help(sys.stderr)
        return USAGE
    try:
        return _COMMANDS[arguments.command](arguments)
    except Exception as error:
        problems = sys.modules.get("lbproxy.control.problems")  # whoever raises a ConfigError has loaded it
        if problems is None or not isinstance(error, problems.ConfigError):
            raise
        return _tell_faults(arguments, error)


def _tell_faults(arguments: argparse.Namespace, error: ConfigError, warnings: Sequence[Problem] = ()) -> int:
    """Say what is wrong with a configuration, whichever command has met it."""
    if not getattr(arguments, "json", False):
        return _fail(BAD, str(error))
    problems, others = ([each.as_dict() for each in found] for found in (error.problems, warnings))
    _print_json({"file": error.problems[0].file, "ok": False, "problems": problems, "warnings": others})
    return BAD


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


# The commands


def _run_proxy(arguments: argparse.Namespace) -> int:
    path = _config_path(arguments.config)
    from lbproxy.server import run

    return run(path)


def _demo(arguments: argparse.Namespace) -> int:
    from lbproxy.demo.app import run

    return run(arguments.seconds, arguments.backends, arguments.port, arguments.calm)


def _check(arguments: argparse.Namespace) -> int:
    if arguments.file is not None and arguments.config is not None:
        raise Stop(USAGE, "lbproxy check: name the file once, as FILE or with -c")
    path = _config_path(arguments.config if arguments.file is None else arguments.file)
    from lbproxy.control.build import build
    from lbproxy.control.client import compared
    from lbproxy.control.config import examine
    from lbproxy.control.problems import ConfigError

    found = examine(path, looks_at_files=not arguments.no_files)
    if not arguments.json:
        for warning in found.denied:
            print(warning.shown("warning"), file=sys.stderr)
    try:
        file = found.usable()
    except ConfigError as error:
        if found.unfit:
            error.advice = "lbproxy: with --no-files what concerns this machine is left out"
        return _tell_faults(arguments, error, found.denied)
    config = build(file, source=path)
    restart = compared(arguments, file)
    backends = sum(len(pool.backends) for pool in config.pools)
    counts = {"listeners": len(config.listeners), "pools": len(config.pools), "backends": backends}
    if arguments.json:
        warnings = [warning.as_dict() for warning in found.denied]
        told = {"file": path, "ok": True, "problems": [], "warnings": warnings}
        _print_json({**told, **counts, "workers": config.workers, **restart})
    else:
        _print_check(path, counts, restart)
    return OK


def _print_check(path: str, counts: dict[str, int], restart: dict[str, Any]) -> None:
    """What a file without mistakes has, and what of it only a restart puts in force."""
    parts = [f"{count} {noun if count != 1 else noun[:-1]}" for noun, count in counts.items()]
    print(f"{path}: ok: {', '.join(parts)}")
    if restart["needs_restart"]:
        names, instance = ", ".join(restart["needs_restart"]), restart["compared_with"]
        say = f"only a restart of the instance at {instance}" if instance else "once it runs, only a restart"
        print(f"{path}: {say} changes {names}")


def _explain(arguments: argparse.Namespace) -> int:
    key = _key(arguments.key, arguments.hex)
    if arguments.live or arguments.admin is not None:
        from lbproxy.control.client import explain_live

        return explain_live(arguments, lambda: _known_config_path(arguments.config), key)
    config = _load(arguments.config)
    pool = _pool(config, arguments.pool, "explain")
    from lbproxy.control.explain import explain, to_json, to_text

    found = explain(pool, key, config.zone)
    if arguments.json:
        _print_json(to_json(found))
    else:
        sys.stdout.write(to_text(found))
    return OK


def _ask_instance(arguments: argparse.Namespace) -> int:
    if arguments.client == "diff":
        _only_one_is_stdin("diff", arguments.config, arguments.file)
    from lbproxy.control.client import run

    return run(arguments, lambda: _known_config_path(arguments.config))


def _simulate(arguments: argparse.Namespace) -> int:
    from lbproxy.simulate.command import Misused, run
    from lbproxy.simulate.record import Unusable

    pool, zone = None, ""
    _only_one_is_stdin("simulate", arguments.config, getattr(arguments, "from_log", None))
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
    from lbproxy.control.config import read
    from lbproxy.control.source import without_secrets
    from lbproxy.control.write import resolved, to_yaml

    fields = resolved(read(path))
    if arguments.hide_secrets:
        fields = without_secrets(fields)
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


_COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "run": _run_proxy,
    "demo": _demo,
    "check": _check,
    "explain": _explain,
    "client": _ask_instance,
    "simulate": _simulate,
    "config": _config,
    "schema": _schema,
    "dashboards": _export_dashboards,
    "version": _version,
}


def _config_path(given: str | None) -> str:
    path = _known_config_path(given)
    if path is not None:
        return path
    raise Stop(BAD, f"lbproxy: no configuration: neither {' nor '.join(CONFIG_PLACES)} exists, name one with -c FILE")


def _known_config_path(given: str | None) -> str | None:
    """The configuration that is meant, or None when none is named and none is where it usually is."""
    if given is not None:
        return _STDIN if given == "-" else given
    return next((place for place in CONFIG_PLACES if os.path.exists(place)), None)


def _only_one_is_stdin(command: str, *given: str | None) -> None:
    """Raises Stop where two files are to be read from stdin, which gives everything to the first."""
    if sum(name in ("-", _STDIN) for name in given) > 1:
        raise Stop(USAGE, f"lbproxy {command}: stdin can be only one of the two files, name the other")


def _load(given: str | None) -> Config:
    path = _config_path(given)
    from lbproxy.control.config import load

    return load(path)


def _pool(config: Config, name: str | None, command: str) -> PoolSpec:
    from lbproxy.control.choice import chosen_pool

    pools = {pool.name: pool for pool in config.pools}
    return pools[chosen_pool(pools, name, command)]


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
