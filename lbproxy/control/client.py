"""The command line's side of the admin API: finding a running instance, asking it, and showing what it says.

Plain `http.client` over TCP or the Unix socket; nothing here needs an event loop.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from lbproxy.control import status_text

if TYPE_CHECKING:
    from lbproxy.control.schema import File
    from lbproxy.core.spec import AdminSpec

OK: Final = 0
BAD: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
REFUSED: Final = 4

TIMEOUT_S: Final = 20.0
DEFAULT_PORT: Final = 9901
DEFAULT_ADMIN: Final = f"127.0.0.1:{DEFAULT_PORT}"
WATCH_S: Final = 1.0
WAIT_S: Final = 0.5

Document = dict[str, Any]


class Failure(Exception):
    """Ends the command with a message and an exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Problem(Failure):
    """What the instance says cannot be done. `document` is its problem document."""

    def __init__(self, status: int, document: Document) -> None:
        detail = document.get("detail") or f"the instance answered {status}"
        super().__init__(BAD, f"lbproxy: {detail}")
        self.status = status
        self.document = document


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("lbproxy", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass(frozen=True, slots=True)
class Admin:
    """Where an instance's admin API is: a Unix socket `path`, or `host` and `port` with a token or none.

    `lack` is why there are no more rights at hand, such as a token file that may not be read.
    """

    path: str = ""
    host: str = ""
    port: int = 0
    token: str = ""
    lack: str = ""

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}"

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> Any:
        """One request; the document of the answer, or its text. Raises Failure."""
        connection = (
            _UnixConnection(self.path, TIMEOUT_S)
            if self.path
            else http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        )
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = kind
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            raise Failure(UNREACHABLE, f"lbproxy: cannot reach the instance at {self}: {why}") from None
        finally:
            connection.close()
        return _read(answer.status, answer.getheader("Content-Type", ""), content, self.lack)


def _read(status: int, kind: str, content: bytes, lack: str) -> Any:
    text = content.decode("utf-8", "replace")
    document: Any = text
    if "json" in kind:
        try:
            document = json.loads(text)
        except ValueError:
            raise Failure(UNREACHABLE, "lbproxy: what answers there is no lbproxy") from None
    if status >= 400:
        problem = document if isinstance(document, dict) else {"detail": text.strip()}
        if lack and status in (401, 403):
            problem = problem | {"detail": f"{problem.get('detail')}; {lack}"}
        raise Problem(status, problem)
    return document


# Finding it


def find(arguments: Namespace, config_path: Callable[[], str | None]) -> Admin:
    """The admin API that the arguments mean; `config_path()` is the configuration, if there is one. Raises Failure."""
    if arguments.admin is not None:
        return _named(arguments.admin, arguments.token_file)
    path = config_path()
    if path is None:
        return _named(DEFAULT_ADMIN, arguments.token_file)
    spec = _section(path)
    if spec.socket and (os.access(spec.socket, os.W_OK) or spec.listen is None):
        return Admin(path=spec.socket)
    if spec.listen is None:
        raise Failure(UNREACHABLE, f"lbproxy: {path} has no admin API; name one with --admin")
    host = spec.listen.host
    token, lack = _token(arguments.token_file or spec.token_file)
    if spec.socket and not token:
        lack = f"the socket {spec.socket} {'may not be used by you' if os.path.exists(spec.socket) else 'is not there'}"
    return Admin(
        host={"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host),
        port=spec.listen.port,
        token=token,
        lack=lack,
    )


def _section(path: str) -> AdminSpec:
    """The admin section of a configuration, though the rest of it may be wrong: that is when people ask for help."""
    from pydantic import ValidationError

    from lbproxy.control.addresses import read_bind
    from lbproxy.control.config import ConfigError, decode
    from lbproxy.control.schema import Admin as Section
    from lbproxy.control.tree import read_tree
    from lbproxy.core.spec import AdminSpec

    try:
        with open(path, "rb") as file:
            root = read_tree(decode(file.read(), path), os.environ).root
    except ConfigError as error:
        raise Failure(BAD, str(error)) from None
    except OSError as error:
        raise Failure(BAD, f"lbproxy: cannot read {path}: {error.strerror}") from None
    data = root.plain() if root is not None else None
    try:
        section = Section.model_validate(data.get("admin", {}) if isinstance(data, dict) else {})
    except ValidationError:
        raise Failure(BAD, f"lbproxy: the admin section of {path} is wrong; name the instance with --admin") from None
    listen = None if section.listen is None else read_bind(section.listen)
    return AdminSpec(listen, section.socket, section.token_file)


def _named(text: str, token_file: str | None) -> Admin:
    if text.startswith("unix:"):
        return Admin(path=text.removeprefix("unix:").removeprefix("//"))
    rest = text.removeprefix("http://").rstrip("/")
    host, colon, port = rest.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = rest, str(DEFAULT_PORT)
    if not (port.isascii() and port.isdigit() and int(port) < 65536 and host):
        raise Failure(USAGE, f"lbproxy: {text} is no admin address; write host:port or unix:/path")
    token, lack = _token(token_file or "")
    return Admin(host=host.removeprefix("[").removesuffix("]"), port=int(port), token=token, lack=lack)


def _token(path: str) -> tuple[str, str]:
    """The token, and why there is none: it may be that it cannot be read, and reading the API takes none."""
    if not path:
        return "", ""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip(), ""
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is no text"
        return "", f"the token file {path} cannot be read: {why}"


# Commands


def run(arguments: Namespace, config_path: Callable[[], str | None]) -> int:
    """Carry out a command of `client_options`; returns the exit code. Raises Failure."""
    if arguments.client == "diff":
        return _diff(arguments, config_path)
    return _COMMANDS[arguments.client](arguments, find(arguments, config_path))


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
        raise Failure(REFUSED, "\n".join(lines)) from None
    if arguments.json:
        _print_json(done)
        return OK
    print(f"{done['outcome']}: generation {done['generation']}, fingerprint {done['fingerprint']}")
    if done["needs_restart"]:
        print(f"lbproxy: a restart is needed for {', '.join(done['needs_restart'])}", file=sys.stderr)
    if not done["complete"]:
        print("lbproxy: a worker has not acknowledged it yet", file=sys.stderr)
    return OK


def _diff(arguments: Namespace, config_path: Callable[[], str | None]) -> int:
    text = _checked(arguments.file) if arguments.file is not None else None
    document: Document | None = None
    if not arguments.offline:
        try:
            body = text.encode() if text is not None else None
            document = find(arguments, config_path).ask("POST", "/v1/plan", body, "application/yaml")
        except Failure as failure:
            is_about_file = isinstance(failure, Problem) and failure.status == 422
            if arguments.file is None or is_about_file:
                raise
            print(f"{failure}; comparing the files alone", file=sys.stderr)
    if document is None:
        document = _offline(text, arguments.file, config_path())
    if arguments.json:
        _print_json(document)
    else:
        from lbproxy.control.plan_text import to_text

        sys.stdout.write(to_text(document))
    return OK


def _checked(path: str) -> str:
    """The text of a configuration that is good. Raises Failure."""
    from lbproxy.control.config import ConfigError, loads

    try:
        with open("/dev/stdin" if path == "-" else path, encoding="utf-8") as file:
            text = file.read()
        loads(text, path)
    except ConfigError as error:
        raise Failure(BAD, str(error)) from None
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not UTF-8"
        raise Failure(BAD, f"lbproxy: cannot read {path}: {why}") from None
    return text


def _offline(text: str | None, name: str | None, running: str | None) -> Document:
    from lbproxy.control.config import ConfigError, load, loads
    from lbproxy.control.plan import plan
    from lbproxy.control.plan_text import to_json
    from lbproxy.control.restart import needs_restart

    if text is None or running is None:
        raise Failure(USAGE, "lbproxy diff: name two files: the new one, and with -c the one that runs")
    try:
        before, after = load(running), loads(text, name or "")
    except ConfigError as error:
        raise Failure(BAD, str(error)) from None
    return to_json(plan(before, after, needs_restart=needs_restart(before, after)))


def compared(arguments: Namespace, file: File) -> Document:
    """What of a checked file a reload would not put in force, for `check`.

    `compared_with` is the instance that said so: the one that is named, or else the one at the file's own Unix socket.
    With none, it is all that the file sets and only a restart changes. Raises Failure when the one that is named does
    not answer.
    """
    from lbproxy.control.restart import only_by_restart
    from lbproxy.control.write import resolved, to_yaml

    admin: Admin | None = None
    if arguments.admin is not None:
        admin = _named(arguments.admin, arguments.token_file)
    elif file.admin.socket and os.access(file.admin.socket, os.W_OK):
        admin = Admin(path=file.admin.socket)
    if admin is not None:
        try:
            said = admin.ask("POST", "/v1/check", to_yaml(resolved(file)).encode(), "application/yaml")
            return {"needs_restart": said.get("needs_restart", []), "compared_with": str(admin)}
        except Failure:
            if arguments.admin is not None:
                raise
    return {"needs_restart": list(only_by_restart(file)), "compared_with": None}


def _drain(arguments: Namespace, admin: Admin) -> int:
    asked = {"state": "drain", "ttl": arguments.ttl, "reason": arguments.reason, "force": arguments.force}
    path, done = _decide(arguments, admin, asked)
    if arguments.wait is None:
        return _show(arguments, done)
    end = time.monotonic() + _seconds(arguments.wait)
    while not done["empty"] and time.monotonic() < end:
        time.sleep(WAIT_S)
        done = admin.ask("GET", path)
    _show(arguments, done)
    if not done["empty"]:
        raise Failure(BAD, f"lbproxy: {done['name']} still has something left")
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
            raise Failure(USAGE, f"lbproxy weight: {bad}, or `file`") from None
        if weight < 0:
            raise Failure(USAGE, "lbproxy weight: a weight is 0 or more")
    asked = {"weight": weight, "ttl": arguments.ttl, "reason": arguments.reason, "force": arguments.force}
    return _show(arguments, _decide(arguments, admin, asked)[1])


def _decide(arguments: Namespace, admin: Admin, asked: Document) -> tuple[str, Document]:
    """Have it decided; returns the backend's path in the API and how it stands."""
    if asked.get("ttl") is not None:
        _seconds(asked["ttl"])
    path = _backend_path(admin.ask("GET", "/v1/pools")["pools"], arguments.backend, arguments.pool)
    body = {name: value for name, value in asked.items() if value not in (None, "", False) or name == "weight"}
    return path, admin.ask("PATCH", path, json.dumps(body).encode())


def _seconds(text: str) -> float:
    from lbproxy.control.values import BadValue, read_duration

    try:
        return read_duration(text)
    except BadValue as bad:
        hint = f", did you mean {bad.hint}?" if bad.hint else ""
        raise Failure(USAGE, f"lbproxy: {bad}{hint}") from None


def _backend_path(pools: Sequence[Mapping[str, Any]], backend: str, pool: str | None) -> str:
    """Where a backend is in the API. Raises Failure."""
    import difflib

    if pool is not None and pool not in [each["name"] for each in pools]:
        raise Failure(BAD, f"lbproxy: there is no pool {pool}, there is {', '.join(each['name'] for each in pools)}")
    found = [
        each["name"]
        for each in pools
        if pool in (None, each["name"]) and backend in [known["name"] for known in each["backends"]]
    ]
    if len(found) > 1:
        raise Failure(USAGE, f"lbproxy: several pools have a {backend}, name one with --pool: {', '.join(found)}")
    if not found:
        names = [known["name"] for each in pools for known in each["backends"] if pool in (None, each["name"])]
        close = difflib.get_close_matches(backend, names, n=1)
        raise Failure(BAD, f"lbproxy: there is no backend {backend}" + (f", did you mean {close[0]}?" if close else ""))
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
        shown = [pool for pool in pools if arguments.pool in (None, pool["name"])]
        if not shown:
            raise Failure(BAD, f"lbproxy: there is no pool {arguments.pool}")
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
