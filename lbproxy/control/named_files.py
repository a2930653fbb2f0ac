"""What a configuration needs around it: whether a start would find the files that it names, and the extra `otel`.

Looking changes nothing: a log is not opened, a socket is not connected to. Both `lbproxy check` and the start of
`lbproxy run` ask here, so that they say the same. What is not known before the start: whether somebody reads a named
pipe, whether a socket's address is in use, whether a disk is full.

A fault that `is_denied` is nothing but a permission that whoever looks does not have; the user that the proxy runs as
may have it.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from lbproxy.control.addresses import read_bind
from lbproxy.control.checks import Fault, listeners_in, mapping_in, valid
from lbproxy.control.schema import AccessLog, Admin, Tracing
from lbproxy.control.token import NoToken, read_token
from lbproxy.control.tree import Path
from lbproxy.core.spec import TracingSpec

_NO_FILE: Final = ("", "-")  # no access log, and stdout
_FOR_ITS_USER: Final = "see that the user that lbproxy runs as may"


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with a file, and what to do."""

    what: str
    is_denied: bool = False


def look(data: object) -> Iterator[Fault]:
    """What is wrong with the files that `data` names, a configuration as plain lists, mappings and text, and what is
    not installed."""
    for path, file, judge in _named(data):
        if (wrong := judge(file)) is not None:
            yield Fault(path, wrong.what, is_denied=wrong.is_denied)
    yield from _extra(data)


def _extra(data: object) -> Iterator[Fault]:
    """What is wrong if spans are to be sent and the libraries for that are not installed."""
    given = mapping_in(data, "tracing").get("otlp")
    tracing = valid(Tracing, {"otlp": given})
    if tracing is not None and tracing.otlp:
        from lbproxy.observe.tracing import CannotTrace, check  # the check loads the library

        try:
            check(TracingSpec(tracing.otlp))
        except CannotTrace as error:
            yield Fault(("tracing", "otlp"), str(error))


def _named(data: object) -> Iterator[tuple[Path, str, Callable[[str], Wrong | None]]]:
    """Where a file is named, its path, and what is to be true of it. A field that is wrong in itself is left out."""
    for place, listener in listeners_in(data):
        if socket := read_bind(listener.bind).path:
            yield (*place, "bind"), socket, judge_socket
    admin = mapping_in(data, "admin")
    for name, judge in (("socket", judge_socket), ("token_file", judge_token)):
        section = valid(Admin, {name: admin[name]}) if name in admin else None
        if section is not None and (file := getattr(section, name)):
            yield ("admin", name), file, judge
    access = mapping_in(mapping_in(data, "log"), "access")
    log = valid(AccessLog, {"path": access["path"]}) if "path" in access else None
    if log is not None and log.path not in _NO_FILE:
        yield ("log", "access", "path"), log.path, judge_log


def judge_log(path: str) -> Wrong | None:
    """What would keep a log from being opened to append to."""
    if path.endswith("/"):
        return Wrong(f"{path} names a directory: name a file in it")
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        # A symbolic link to nothing is followed when the file is made.
        return _judge_folder(os.path.dirname(os.path.realpath(path)))
    except OSError as error:
        return _out_of_reach(path, error)
    if stat.S_ISDIR(mode):
        return Wrong(f"{path} is a directory: name a file in it")
    if stat.S_ISSOCK(mode):
        return Wrong(f"{path} is a socket, which cannot be appended to: name a file, or - for stdout")
    return None if _may(path, os.W_OK) else _not_allowed(path, f"may not write to {path}")


def judge_token(path: str) -> Wrong | None:
    """What would keep the admin token from being read."""
    try:
        read_token(path)
    except NoToken as error:
        if error.is_denied:
            return Wrong(f"{_user()} may not read {path}: {_FOR_ITS_USER}", is_denied=True)
        return Wrong(f"{error}: write a token into {path}")
    return None


def judge_socket(path: str) -> Wrong | None:
    """What would keep a Unix socket from being made. One that is there is no hindrance: somebody could make it."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return _judge_folder(os.path.dirname(path))
    except OSError as error:
        return _out_of_reach(path, error)
    return None if stat.S_ISSOCK(mode) else Wrong(f"{path} is there and is no socket: remove it, or name another path")


def _judge_folder(folder: str) -> Wrong | None:
    """What would keep a file from being made in a directory."""
    try:
        mode = os.stat(folder).st_mode
    except FileNotFoundError:
        return Wrong(f"there is no directory {folder}: make it, for the user that lbproxy runs as")
    except OSError as error:
        return _out_of_reach(folder, error)
    if not stat.S_ISDIR(mode):
        return Wrong(f"{folder} is no directory: name a file in one")
    return None if _may(folder, os.W_OK | os.X_OK) else _not_allowed(folder, f"may not make files in {folder}")


def _out_of_reach(path: str, error: OSError) -> Wrong:
    if isinstance(error, PermissionError):
        return Wrong(f"{_user()} may not look at {path}: {_FOR_ITS_USER}", is_denied=True)
    return Wrong(f"there can be no file {path} ({error.strerror}): name another path")


def _not_allowed(path: str, what: str) -> Wrong:
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return Wrong(f"{path} is on a file system that nobody can write to: name a place on another")
    return Wrong(f"{_user()} {what}: {_FOR_ITS_USER}", is_denied=True)


def _may(path: str, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _user() -> str:
    """Who looks."""
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"
