"""Addresses are taken for all slots or refused in one clear line, and nothing of others is touched."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lbproxy.core.spec import Address, Config, ListenerSpec
from lbproxy.sockets import CannotListen, Listeners, Listening, listen

LOOPBACK = Address("127.0.0.1", 0)


def accepted(sock: socket.socket) -> int:
    count = 0
    while True:
        try:
            sock.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def test_every_slot_gets_its_share_of_the_connections() -> None:
    listening = listen(LOOPBACK, 3)
    assert len({sock.getsockname() for sock in listening.sockets}) == 1
    assert listening.sockets[0].getsockname()[1] == listening.address.port
    clients = [socket.create_connection(("127.0.0.1", listening.address.port)) for _ in range(300)]
    counts = [accepted(sock) for sock in listening.sockets]
    assert sum(counts) == 300
    assert min(counts) > 50
    for client in clients:
        client.close()
    listening.close()


def test_accepted_connections_can_do_without_nagle() -> None:
    listening = listen(LOOPBACK, 2)
    assert {sock.proto for sock in listening.sockets} == {socket.IPPROTO_TCP}
    listening.close()


@pytest.mark.parametrize("other", ["127.0.0.1", "0.0.0.0"])
def test_an_address_in_use_is_refused_though_its_holder_shares_it(other: str) -> None:
    first = listen(LOOPBACK, 2)
    with pytest.raises(CannotListen) as caught:
        listen(Address(other, first.address.port), 2)
    assert str(caught.value) == f"cannot listen on {other}:{first.address.port}: the address is in use"
    first.close()
    listen(first.address, 2).close()


def test_a_port_with_connections_in_time_wait_can_be_taken_again() -> None:
    listening = listen(LOOPBACK, 1)
    client = socket.create_connection(("127.0.0.1", listening.address.port))
    server, _ = listening.sockets[0].accept()
    server.close()
    client.close()
    listening.close()
    again = listen(listening.address, 2)
    assert again.address == listening.address
    again.close()


def on_both() -> tuple[Listening, Listening]:
    """An IPv6 and an IPv4 address with the same port. One that is free for the first may be taken for the second, by
    whoever else uses this machine; but hardly time and again."""
    for attempt in range(10):
        try:
            six = listen(Address("::1", 0), 2)
        except CannotListen as error:
            pytest.skip(f"no IPv6 here: {error}")
        try:
            return six, listen(Address("127.0.0.1", six.address.port), 2)
        except CannotListen:
            six.close()
            if attempt == 9:
                raise
    raise AssertionError


def test_ipv6_is_only_ipv6() -> None:
    six, four = on_both()
    with socket.create_connection(("::1", six.address.port)), socket.create_connection(four.sockets[0].getsockname()):
        assert [sum(map(accepted, each.sockets)) for each in (six, four)] == [1, 1]
    six.close()
    four.close()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (Address("192.0.2.1", 8080), "this machine has no such address"),
        (Address("no-such-host.invalid", 8080), "no-such-host.invalid is not known here"),
        (Address("", 0, "/nonexistent/x.sock"), "the directory does not exist"),
    ],
)
def test_what_cannot_be_bound_is_said_in_one_line(address: Address, why: str) -> None:
    with pytest.raises(CannotListen) as caught:
        listen(address)
    assert str(caught.value).startswith(f"cannot listen on {address}: {why}")
    assert "\n" not in str(caught.value)


def test_a_unix_socket_is_shared_by_all_slots_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listening = listen(Address("", 0, str(path)), 3, 0o600)
    assert len({id(sock) for sock in listening.sockets}) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(CannotListen, match="the address is in use"):
        listen(Address("", 0, str(path)))
    listening.close()
    assert not path.exists()
    listening.close()


LEAVE_BEHIND = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()"


def test_a_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    subprocess.run([sys.executable, "-c", LEAVE_BEHIND, str(path)], check=True)
    assert path.is_socket()
    listening = listen(Address("", 0, str(path)))
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    client.close()
    listening.close()


def test_a_socket_file_whose_holder_is_busy_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as holder, contextlib.ExitStack() as clients:
        holder.bind(path)
        holder.listen(0)
        with pytest.raises(BlockingIOError):  # nobody accepts, and the queue is full before long
            while True:
                client = clients.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(path)
        with pytest.raises(CannotListen, match="the address is in use"):
            listen(Address("", 0, path))
        assert os.path.exists(path)


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(CannotListen, match="not a socket"):
        listen(Address("", 0, str(path)))
    assert path.read_text() == "precious"


def test_a_successors_socket_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = listen(Address("", 0, str(path)))
    os.unlink(path)
    second = listen(Address("", 0, str(path)))
    first.close()
    assert path.is_socket()
    second.close()


def listening_on(**binds: Address) -> Config:
    return Config(tuple(ListenerSpec(name, bind) for name, bind in binds.items()), (), ())


def test_what_is_listened_on_follows_the_configuration(tmp_path: Path) -> None:
    one, other = Address("", 0, str(tmp_path / "one")), Address("", 0, str(tmp_path / "other"))
    listeners = Listeners(2)
    assert listeners.listen(listening_on(one=one)) == ["one"]
    kept = listeners.descriptors(["one"], 0)
    assert listeners.listen(listening_on(one=one, other=other)) == ["other"]
    assert listeners.addresses == {"one": str(one), "other": str(other)}
    assert listeners.descriptors(["one"], 1) == kept
    listeners.close_others(listening_on(other=other))
    assert (os.path.exists(one.path), os.path.exists(other.path)) == (False, True)
    listeners.close_all()
    assert not os.path.exists(other.path)
    assert listeners.addresses == {"other": str(other)}


def test_an_address_that_we_hold_ourselves_is_said_to_be_so() -> None:
    listeners = Listeners(1)
    listeners.listen(listening_on(one=Address("127.0.0.1", 0)))
    port = int(listeners.addresses["one"].rpartition(":")[2])
    with pytest.raises(CannotListen, match=rf"^cannot listen on localhost:{port}: .* by listener one of .* a restart$"):
        listeners.listen(listening_on(other=Address("localhost", port)))
    with pytest.raises(CannotListen, match=r"no such address$"):
        listeners.listen(listening_on(other=Address("192.0.2.1", port)))
    listeners.close_all()


def test_when_one_address_is_not_to_be_had_nothing_new_is_listened_on(tmp_path: Path) -> None:
    one, missing = Address("", 0, str(tmp_path / "one")), Address("", 0, str(tmp_path / "missing" / "other"))
    listeners = Listeners(1)
    with pytest.raises(CannotListen):
        listeners.listen(listening_on(one=one, other=missing))
    assert listeners.addresses == {}
    assert not os.path.exists(one.path)
