"""Reaching a running instance: where its admin API is, and one question to it.

Plain `http.client` over TCP or the Unix socket; nothing here needs an event loop.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, final

from lbproxy.exits import BAD, UNREACHABLE, USAGE, Stop

if TYPE_CHECKING:
    from lbproxy.control.problems import ConfigError
    from lbproxy.core.spec import AdminSpec

TIMEOUT_S: Final = 20.0
WORK_TIMEOUT_S: Final = 60.0  # for what is more than a question: a reload may have millions of tokens to place
DEFAULT_PORT: Final = 9901
SERVER: Final = "lbproxy"  # as every answer of the admin API says
DEFAULT_ADMIN: Final = f"127.0.0.1:{DEFAULT_PORT}"
_NAME_IT: Final = "name the file it is in with --token-file"

Document = dict[str, Any]


class Problem(Stop):
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

    `lack` is why there are no more rights at hand, such as a token file that may not be read, and `guess` why this
    address is only a guess.
    """

    path: str = ""
    host: str = ""
    port: int = 0
    token: str = ""
    lack: str = ""
    guess: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> Any:
        """One request; the document of the answer, or its text. Raises Stop."""
        timeout_s = TIMEOUT_S if method == "GET" else WORK_TIMEOUT_S
        connection = (
            _UnixConnection(self.path, timeout_s)
            if self.path
            else http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        )
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = kind
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            if answer.getheader("Server") != SERVER:
                raise self._is_another()
            content = answer.read()
        except OSError as error:
            if isinstance(error, TimeoutError) and connection.sock is not None:  # it is there
                more = "" if method == "GET" else "; what was asked for may still be done"
                why = f"lbproxy: the instance at {self} has not answered within {timeout_s:g} s{more}"
                raise Stop(UNREACHABLE, why) from None
            raise self._unreachable(error.strerror or str(error)) from None
        except http.client.BadStatusLine:  # it speaks no HTTP
            raise self._is_another() from None
        except http.client.HTTPException as error:
            raise self._unreachable(str(error) or type(error).__name__) from None
        finally:
            connection.close()
        text = content.decode("utf-8", "replace")
        document: Any = json.loads(text) if "json" in answer.getheader("Content-Type", "") else text
        if answer.status < 400:
            return document
        if not isinstance(document, dict):  # of `/readyz` and the metrics
            document = {"detail": text.strip()}
        if answer.status in (401, 403):
            more = self.lack or (_NAME_IT if answer.status == 401 and not self.token else "")
            document |= {"detail": f"{document['detail']}{more and '; '}{more}"}
        raise Problem(answer.status, document)

    def _unreachable(self, why: str) -> Stop:
        return Stop(UNREACHABLE, f"lbproxy: cannot reach the instance at {self}: {why}{self.guess}")

    def _is_another(self) -> Stop:
        return Stop(UNREACHABLE, f"lbproxy: what answers at {self} is no admin API of lbproxy")


@final
class Named:
    """The configuration that a command names, or finds where it usually is. It is looked for and read when it is first
    asked for, and once: from a pipe it comes no second time."""

    def __init__(self, find_path: Callable[[], str | None]) -> None:
        """`find_path()` is where it is, or None where there is none."""
        self._find_path: Final = find_path

    @cached_property
    def path(self) -> str | None:
        return self._find_path()

    @cached_property
    def text(self) -> str:
        """Raises ConfigError. There is a path."""
        from lbproxy.control.config import read_text

        assert self.path is not None
        return read_text(self.path)


def find(arguments: Namespace, config: Named) -> Admin:
    """The admin API that the arguments mean. Raises Stop, and ConfigError for a configuration that does not say."""
    if arguments.admin is not None:
        return named(arguments.admin, arguments.token_file)
    path = config.path
    if path is None:
        guess = "; without a configuration this is the default: name one with -c FILE, or the instance with --admin"
        return replace(named(DEFAULT_ADMIN, arguments.token_file), guess=guess)
    text = config.text
    spec = _section(text, path)
    if spec is None:
        # Whether the default address has an instance that is ready is a question that can do no harm.
        if arguments.client == "healthcheck":
            return named(DEFAULT_ADMIN, arguments.token_file)
        raise _faulty(text, path, f"{path} cannot be read as far as `admin`")
    listen = spec.listen if spec.listen is not None and spec.listen.port else None  # port 0 is one that nobody knows
    if spec.socket and (os.access(spec.socket, os.W_OK) or listen is None):
        return Admin(path=spec.socket)
    if spec.listen is not None and listen is None:
        raise Stop(UNREACHABLE, f"lbproxy: {path} leaves the port of admin.listen to the system; name it with --admin")
    if listen is None:
        raise Stop(UNREACHABLE, f"lbproxy: {path} has no admin API; name one with --admin")
    host = listen.host
    token, lack = _token(arguments.token_file or spec.token_file)
    if spec.socket and not token:
        lack = f"the socket {spec.socket} {'may not be used by you' if os.path.exists(spec.socket) else 'is not there'}"
    return Admin(
        host={"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host),
        port=listen.port,
        token=token,
        lack=lack,
    )


def _section(text: str, path: str) -> AdminSpec | None:
    """The admin section of a configuration, though the rest of it may be wrong: that is when people ask for help.

    None when what can be read says neither where the instance is nor that it is where it is by default.
    """
    from pydantic import ValidationError

    from lbproxy.control.addresses import read_bind
    from lbproxy.control.schema import Admin as Section
    from lbproxy.control.tree import read_tree
    from lbproxy.core.spec import AdminSpec

    tree = read_tree(text, os.environ)
    root = tree.root or tree.begun
    data = root.plain() if root is not None else {}
    if not isinstance(data, dict) or (tree.root is None and tree.troubles and "admin" not in data):
        return None
    try:
        section = Section.model_validate(data.get("admin", {}))
    except ValidationError:
        raise _faulty(text, path, f"the admin section of {path} is wrong") from None
    listen = None if section.listen is None else read_bind(section.listen)
    return AdminSpec(listen, section.socket, section.token_file)


def _faulty(text: str, path: str, why: str) -> ConfigError:
    """What is wrong with a configuration that does not say where the instance is."""
    from lbproxy.control.config import examine_text
    from lbproxy.control.problems import ConfigError

    found = examine_text(text, path, looks_at_files=False).problems
    of_admin = [problem for problem in found if problem.path.partition(".")[0] == "admin"]
    return ConfigError(of_admin or found, f"lbproxy: {why}; name the instance with --admin")


def named(text: str, token_file: str | None) -> Admin:
    """The admin API at host:port or unix:/path. Raises Stop."""
    if text.startswith("unix:") and text.strip("/") != "unix:":
        return Admin(path=text.removeprefix("unix:").removeprefix("//"))
    from lbproxy.control.addresses import read_host_port
    from lbproxy.control.values import BadValue, quote

    try:
        address = read_host_port(text.removeprefix("http://").rstrip("/"), DEFAULT_PORT)
    except BadValue as bad:
        meant = f"did you mean {bad.hint}?" if bad.hint else "write host:port or unix:/path"
        raise Stop(USAGE, f"lbproxy: {quote(text)} is no admin address, {meant}") from None
    token, lack = _token(token_file or "")
    return Admin(host=address.host, port=address.port, token=token, lack=lack)


def _token(path: str) -> tuple[str, str]:
    """The token, and why there is none: it may be that it cannot be read, and reading the API takes none."""
    if not path:
        return "", ""
    from lbproxy.control.token import NoToken, read_token

    try:
        token = read_token(path)
    except NoToken as error:
        return "", f"the token file {path} {error.why}"
    if any(octet < 0x20 or octet == 0x7F for octet in token):
        return "", f"the token file {path} holds what no header can, such as a second line"
    return token.decode("latin-1"), ""  # as a header has its octets
