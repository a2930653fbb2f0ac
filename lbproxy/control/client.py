"""The commands that ask a running instance (`reach`): what they ask, and how they show what it says."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from lbproxy.control import status_text
from lbproxy.control.choice import check_pool, chosen_pool
from lbproxy.control.reach import Admin, Document, Named, Problem, find, named
from lbproxy.exits import BAD, OK, REFUSED, USAGE, Stop

if TYPE_CHECKING:
    from lbproxy.control.schema import File

WATCH_S: Final = 1.0
WAIT_S: Final = 0.5
# How long a drain may take that has nothing to wait for: the workers must have heard of it, and held nothing since.
SETTLE_S: Final = 2.5


def run(arguments: Namespace, config_path: Callable[[], str | None]) -> int:
    """Carry out a command of `client_options`; returns the exit code. Raises Stop, and ConfigError for a file."""
    if arguments.client == "diff":
        return _diff(arguments, Named(config_path))
    return _COMMANDS[arguments.client](arguments, find(arguments, Named(config_path)))


def _reload(arguments: Namespace, admin: Admin) -> int:
    try:
        done = admin.ask("POST", "/v1/reload")
    except Problem as problem:
        if problem.status != 409:
            raise
        if arguments.json:
            _print_json(problem.document)
            return REFUSED
        lines = [*problem.document.get("problems", ()), f"lbproxy: {problem.document['detail']}"]
        raise Stop(REFUSED, "\n".join(lines)) from None
    if arguments.json:
        _print_json(done)
        return OK
    print(f"{done['outcome']}: generation {done['generation']}, fingerprint {done['fingerprint']}")
    if done["needs_restart"]:
        print(f"lbproxy: a restart is needed for {', '.join(done['needs_restart'])}", file=sys.stderr)
    if not done["complete"]:
        print("lbproxy: a worker has not acknowledged it yet", file=sys.stderr)
    return OK


def _diff(arguments: Namespace, config: Named) -> int:
    name = "/dev/stdin" if arguments.file == "-" else arguments.file
    text = _checked(name) if name is not None else None
    document: Document | None = None
    if not arguments.offline:
        try:
            body = text.encode() if text is not None else None
            document = find(arguments, config).ask("POST", "/v1/plan", body, "application/yaml")
        except Stop as stop:
            if isinstance(stop, Problem) and stop.status == 422:
                raise _faults(stop, name) from None
            if name is None:
                raise
            print(f"{stop}; comparing the files alone", file=sys.stderr)
    if document is None:
        document = _offline(text, name, config)
    if arguments.json:
        _print_json(document)
    else:
        from lbproxy.control.plan_text import to_text

        sys.stdout.write(to_text(document))
    return OK


def _checked(path: str) -> str:
    """The text of a configuration that is good. Raises ConfigError."""
    from lbproxy.control.config import loads, read_text

    text = read_text(path)
    loads(text, path)
    return text


def _faults(problem: Problem, name: str | None) -> Exception:
    """What the instance says is wrong with the file that is compared, which is its own unless there is a `name`."""
    from lbproxy.control import problems

    told = problem.document.get("problems")
    if not told:
        return problem
    return problems.ConfigError([problems.Problem.from_dict(each | ({"file": name} if name else {})) for each in told])


def _offline(text: str | None, name: str | None, running: Named) -> Document:
    from lbproxy.control.config import loads
    from lbproxy.control.plan import plan
    from lbproxy.control.plan_text import to_json
    from lbproxy.control.restart import needs_restart

    if text is None or running.path is None:
        raise Stop(USAGE, "lbproxy diff: name two files: the new one, and with -c the one that runs")
    before, after = loads(running.text, running.path), loads(text, name or "")
    return to_json(plan(before, after, needs_restart=needs_restart(before, after)))


def compared(arguments: Namespace, file: File) -> Document:
    """What of a checked file a reload would not put in force, for `check`.

    `compared_with` is the instance that said so: the one that is named, or else the one at the file's own Unix socket.
    With none, it is all that the file sets and only a restart changes. Raises Stop when the one that is named does
    not answer.
    """
    from lbproxy.control.restart import only_by_restart
    from lbproxy.control.write import resolved, to_yaml

    admin: Admin | None = None
    if arguments.admin is not None:
        admin = named(arguments.admin, arguments.token_file)
    elif file.admin.socket and os.access(file.admin.socket, os.W_OK):
        admin = Admin(path=file.admin.socket)
    if admin is not None:
        try:
            said = admin.ask("POST", "/v1/check", to_yaml(resolved(file)).encode(), "application/yaml")
            return {"needs_restart": said.get("needs_restart") or [], "compared_with": str(admin)}
        except Stop:
            if arguments.admin is not None:
                raise
    return {"needs_restart": list(only_by_restart(file)), "compared_with": None}


def _drain(arguments: Namespace, admin: Admin) -> int:
    wait_s = None if arguments.wait is None else _seconds(arguments.wait)
    asked = {"state": "drain", "ttl": arguments.ttl, "reason": arguments.reason, "force": arguments.force}
    path, done = _decide(arguments, admin, asked)
    end = time.monotonic() + (SETTLE_S if wait_s is None else wait_s)
    while not done["empty"] and time.monotonic() < end and (wait_s is not None or not done["in_flight"]):
        time.sleep(WAIT_S)
        done = admin.ask("GET", path)
    _show(arguments, done)
    if wait_s is not None and not done["empty"]:
        raise Stop(BAD, f"lbproxy: {done['name']} still has something left")
    return OK


def _undrain(arguments: Namespace, admin: Admin) -> int:
    return _show(arguments, _decide(arguments, admin, {"state": "active"})[1])


def _weight(arguments: Namespace, admin: Admin) -> int:
    weight: float | None = None
    if arguments.weight != "file":
        from lbproxy.control.values import BadValue, read_number

        try:
            weight = read_number(arguments.weight)
        except BadValue as bad:
            raise Stop(USAGE, f"lbproxy weight: {bad}, or `file`") from None
        if weight < 0:
            raise Stop(USAGE, "lbproxy weight: a weight is 0 or more")
    asked = {"weight": weight, "ttl": arguments.ttl, "reason": arguments.reason, "force": arguments.force}
    return _show(arguments, _decide(arguments, admin, asked)[1])


def _decide(arguments: Namespace, admin: Admin, asked: Document) -> tuple[str, Document]:
    """Have it decided; returns the backend's path in the API and how it stands."""
    if asked.get("ttl") is not None:
        _seconds(asked["ttl"])
    path = _backend_path(admin.ask("GET", "/v1/pools")["pools"], arguments.backend, arguments.pool, arguments.client)
    body = {name: value for name, value in asked.items() if value not in (None, "", False) or name == "weight"}
    done = admin.ask("PATCH", path, json.dumps(body).encode())
    if done.get("not_saved"):
        print(f"lbproxy: in force, but it would not outlive a restart: {done['not_saved']}", file=sys.stderr)
    return path, done


def _seconds(text: str) -> float:
    from lbproxy.control.values import BadValue, read_duration

    try:
        return read_duration(text)
    except BadValue as bad:
        hint = f", did you mean {bad.hint}?" if bad.hint else ""
        raise Stop(USAGE, f"lbproxy: {bad}{hint}") from None


def _backend_path(pools: Sequence[Mapping[str, Any]], backend: str, pool: str | None, command: str) -> str:
    """Where a backend is in the API. Raises Stop."""
    check_pool([each["name"] for each in pools], pool, command)
    found = [
        each["name"]
        for each in pools
        if pool in (None, each["name"]) and backend in [known["name"] for known in each["backends"]]
    ]
    if len(found) > 1:
        raise Stop(USAGE, f"lbproxy: several pools have a {backend}, name one with --pool: {', '.join(found)}")
    if not found:
        names = [known["name"] for each in pools for known in each["backends"] if pool in (None, each["name"])]
        close = get_close_matches(backend, names, n=1)
        raise Stop(BAD, f"lbproxy: there is no backend {backend}" + (f", did you mean {close[0]}?" if close else ""))
    return f"/v1/pools/{quote(found[0], safe='')}/backends/{quote(backend, safe='')}"


def _show(arguments: Namespace, backend: Document) -> int:
    if arguments.json:
        _print_json(backend)
    else:
        print(status_text.backend_line(backend))
    return OK


def _status(arguments: Namespace, admin: Admin) -> int:
    before: list[dict[str, Any]] = []
    looked = 0.0
    while True:
        info, pools = admin.ask("GET", "/v1/info"), admin.ask("GET", "/v1/pools")["pools"]
        check_pool([pool["name"] for pool in pools], arguments.pool, "status")
        shown = [pool for pool in pools if arguments.pool in (None, pool["name"])]
        now = time.monotonic()
        if arguments.json and arguments.watch:
            print(json.dumps({"info": info, "pools": shown}))
        elif arguments.json:
            _print_json({"info": info, "pools": shown})
        elif arguments.watch:
            picture = status_text.moving(info, shown, before, now - looked)
            if sys.stdout.isatty():
                size = shutil.get_terminal_size()
                picture = "\x1b[H\x1b[J" + status_text.fitted(picture, size.columns, size.lines)
            sys.stdout.write(picture)
        else:
            sys.stdout.write(status_text.status(info, shown))
        if not arguments.watch:
            return OK
        sys.stdout.flush()
        before, looked = shown, now
        time.sleep(WATCH_S)


def explain_live(arguments: Namespace, config_path: Callable[[], str | None], key: bytes) -> int:
    """Where a request of this key goes now, as the instance says. Raises Stop, and ConfigError for a file."""
    admin = find(arguments, Named(config_path))
    pool = chosen_pool([each["name"] for each in admin.ask("GET", "/v1/pools")["pools"]], arguments.pool, "explain")
    asked = json.dumps({"key_hex": key.hex()}).encode()  # in the body, which no log keeps
    found = admin.ask("POST", f"/v1/pools/{quote(pool, safe='')}/explain", asked)
    if arguments.json:
        _print_json(found)
    else:
        sys.stdout.write(status_text.explained(found, str(admin)))
    return OK


def _healthcheck(arguments: Namespace, admin: Admin) -> int:
    try:
        said, is_ready = str(admin.ask("GET", "/readyz")).strip(), True
    except Problem as problem:
        if not arguments.json:
            raise
        said, is_ready = str(problem.document.get("detail", "")), False
    if arguments.json:
        _print_json({"ready": is_ready, "detail": said})
    else:
        print(said)
    return OK if is_ready else BAD


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


_COMMANDS: Final[dict[str, Callable[[Namespace, Admin], int]]] = {
    "reload": _reload,
    "drain": _drain,
    "undrain": _undrain,
    "weight": _weight,
    "status": _status,
    "healthcheck": _healthcheck,
}
