"""Listening sockets, made and kept by the supervisor: those of one address, and those of a whole configuration.

A TCP address gets one socket per worker slot, all on the same port (SO_REUSEPORT), so the kernel spreads connections
over the workers. Because the supervisor keeps them, connections that wait on the socket of a killed worker are served
by its replacement. The first socket of an address is bound without SO_REUSEPORT and listens before the option is
switched on: so the kernel itself refuses, without a gap, an address that any other process holds, another lbproxy too.
A Unix socket is one file, and all workers share its one socket.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, final

from lbproxy.core.spec import Address, Config

BACKLOG: Final = 4096
_ANYONE: Final = 0o666

_WORDS: Final = {
    errno.EADDRINUSE: "the address is in use",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.ENOENT: "the directory does not exist",
    errno.ENOTDIR: "the directory does not exist",
    errno.EROFS: "the file system is read-only",
}


class CannotListen(Exception):
    """An address that cannot be bound: one line that says which and why, and if need be for which `field`."""

    def __init__(self, address: Address, why: str, field: str = "") -> None:
        super().__init__(f"cannot listen on {address}{f' ({field})' if field else ''}: {why}")
        self.address: Final = address
        self.why: Final = why


class Listening:
    """The listening sockets of one address. `sockets[slot]` is for that worker slot; `address` has the real port."""

    def __init__(self, address: Address, sockets: list[socket.socket]) -> None:
        self.address = address
        self.sockets = sockets
        self._file = os.lstat(address.path) if address.path else None

    def close(self) -> None:
        """Close this process's ends, and remove a Unix socket's file if it is still ours."""
        for sock in self.sockets:
            sock.close()
        if self._file is not None:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.lstat(self.address.path), self._file):
                    os.unlink(self.address.path)
            self._file = None


def listen(address: Address, slots: int = 1, mode: int = _ANYONE, field: str = "") -> Listening:
    """Bind and listen, for so many slots; `mode` is a Unix socket's, less the umask, and `field` the
    configuration's, for an address that nobody need have written there. Raises CannotListen."""
    try:
        return _listen_unix(address, slots, mode) if address.path else _listen_tcp(address, slots)
    except socket.gaierror as error:
        raise CannotListen(address, f"{address.host} is not known here ({error.strerror})", field) from None
    except OSError as error:
        raise CannotListen(address, _WORDS.get(error.errno or 0) or error.strerror or str(error), field) from None


@final
class Listeners:
    """What is listened on for a configuration: by the name of the listener, for so many worker slots."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._all: dict[str, Listening] = {}

    @property
    def addresses(self) -> dict[str, str]:
        """Where each listener really listens, by its name; they differ when the port was left to the system."""
        return {name: str(listening.address) for name, listening in self._all.items()}

    def listen(self, config: Config) -> list[str]:
        """Listen on what is not listened on yet; on any failure, on none of it. Returns the names of the new ones.
        Raises CannotListen."""
        new: list[str] = []
        try:
            for listener in config.listeners:
                if listener.name not in self._all:
                    self._all[listener.name] = listen(listener.bind, self._slots)
                    new.append(listener.name)
        except CannotListen as error:
            self.close(new)
            raise self._explained(error) from None
        return new

    def _explained(self, error: CannotListen) -> CannotListen:
        """An address that is in use may be so by ourselves, written in another way."""
        port = error.address.port
        own = next((name for name, listening in self._all.items() if port and listening.address.port == port), None)
        if own is None or error.why != _WORDS[errno.EADDRINUSE]:
            return error
        why = f"{error.why} by listener {own} of this proxy, which is given up only when the new one is there"
        return CannotListen(error.address, f"{why}: that takes a restart")

    def close_others(self, config: Config) -> None:
        """Listen no more on what this configuration does not have."""
        names = {listener.name for listener in config.listeners}
        self.close([name for name in self._all if name not in names])

    def descriptors(self, names: Iterable[str], slot: int) -> list[int]:
        """The sockets of these listeners for one slot."""
        return [self._all[name].sockets[slot].fileno() for name in names]

    def close(self, names: Iterable[str]) -> None:
        """Listen no more on these."""
        for name in names:
            self._all.pop(name).close()

    def close_all(self) -> None:
        """Listen no more; `addresses` still says where it was."""
        for listening in self._all.values():
            listening.close()


def _listen_tcp(address: Address, slots: int) -> Listening:
    flags = socket.AI_PASSIVE | socket.AI_ADDRCONFIG if address.host else socket.AI_PASSIVE
    family, _, _, _, where = socket.getaddrinfo(
        address.host or None, address.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=flags
    )[0]
    sockets: list[socket.socket] = []
    try:
        for slot in range(slots):
            # The protocol is named because uvloop sets TCP_NODELAY only where it reads IPPROTO_TCP.
            sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if slot:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(where)
            sock.listen(BACKLOG)
            sock.setblocking(False)
            if not slot:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                where = sock.getsockname()
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return Listening(Address(address.host, int(where[1])), sockets)


def _listen_unix(address: Address, slots: int, mode: int) -> Listening:
    _remove_stale(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(sock.fileno(), mode)  # the file that bind makes gets this mode from its first moment on
        sock.bind(address.path)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return Listening(address, [sock] * slots)


def _remove_stale(address: Address) -> None:
    """Unlink the socket file of a process that has ended; leave one that answers, and anything else, alone."""
    try:
        found = os.lstat(address.path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise CannotListen(address, "there is a file of that name that is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            os.unlink(address.path)
            return
        except (TimeoutError, BlockingIOError):  # whoever listens is busy
            pass
    raise CannotListen(address, "the address is in use")
