"""An explanation agrees with the ring that carries the traffic, and says where each of its numbers comes from."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lbproxy.control.explain import explain, to_json, to_text
from lbproxy.core.forge import build_ring
from lbproxy.core.hashing import SPACE, hash_key, token
from lbproxy.core.snapshot import build_snapshot
from lbproxy.core.spec import Address, BackendSpec, Config, KeySource, Pin, PoolSpec, Sticky
from lbproxy.observe.slabs import Layout
from lbproxy.supervisor import row_keys


def pool(*weights: float, vnodes: int = 64) -> PoolSpec:
    return PoolSpec(
        "web",
        tuple(
            BackendSpec(f"b{number}", Address("10.0.0.1", 8000 + number), weight, zone="abc"[number % 3])
            for number, weight in enumerate(weights)
        ),
        vnodes=vnodes,
    )


@given(
    st.lists(st.sampled_from([0.0, 0.01, 0.5, 1.0, 3.0]), min_size=1, max_size=6), st.binary(min_size=1, max_size=20)
)
def test_the_preference_list_is_the_walk_of_the_ring(weights: list[float], key: bytes) -> None:
    asked = pool(*weights)
    ring = build_ring([(backend.name, backend.weight) for backend in asked.backends], asked.vnodes)
    found = explain(asked, key)
    assert [step.backend.name for step in found.steps] == [ring.names[member] for member in ring.walk(hash_key(key))]
    assert [standing.owned for standing in found.standings] == ring.ownership()
    assert found.fingerprint == ring.fingerprint


@given(st.binary(min_size=1, max_size=20))
def test_each_step_is_at_the_nearest_token_of_its_backend(key: bytes) -> None:
    asked = pool(1, 2, 0.5)
    counts = {"b0": 64, "b1": 128, "b2": 32}
    position = hash_key(key)
    distances = []
    for step in explain(asked, key).steps:
        name = step.backend.name
        assert token(name, step.number) == step.token
        nearest = min((token(name, number) - position) % SPACE for number in range(counts[name]))
        assert (step.token - position) % SPACE == nearest
        assert step.distance == nearest / SPACE
        distances.append(step.distance)
    assert distances == sorted(distances)


def test_shares() -> None:
    found = explain(pool(1, 3, 0), b"kim")
    assert [standing.tokens for standing in found.standings] == [64, 192, 0]
    assert [standing.expected for standing in found.standings] == [0.25, 0.75, 0.0]
    assert sum(standing.owned for standing in found.standings) == 1.0


def test_the_order_of_the_file_makes_no_difference() -> None:
    asked = pool(1, 2, 3)
    turned = PoolSpec(asked.name, tuple(reversed(asked.backends)), vnodes=asked.vnodes)
    assert to_json(explain(asked, b"kim")) == to_json(explain(turned, b"kim"))


def test_as_text() -> None:
    asked = PoolSpec(
        "web",
        pool(1, 2).backends,
        sticky=Sticky((KeySource("cookie", "sid"), KeySource("path_segment", index=1), KeySource("client_ip"))),
        vnodes=64,
    )
    found = explain(asked, b"kim")
    owner, second = found.steps
    assert to_text(found).splitlines()[:6] == [
        f"pool      web, 2 backends, 192 tokens, ring {found.fingerprint}",
        'key       "kim" (3 bytes), found in cookie sid or path segment 1 or the client\'s address',
        f"hash      0x{hash_key(b'kim'):016x} (xxh3_64), {hash_key(b'kim') / SPACE * 100:.3f} % of the circle",
        f"owner     {owner.backend.name}, {owner.backend.address}, weight {owner.backend.weight:g}, "
        f"zone {owner.backend.zone}",
        f"why       its token {owner.number} at 0x{owner.token:016x} is the first at or after the hash, "
        f"{owner.distance * 100:.3f} % further on",
        f"then      {second.backend.name}, {second.backend.address}, weight {second.backend.weight:g}, "
        f"zone {second.backend.zone}, token {second.number} at 0x{second.token:016x}",
    ]
    assert len(to_text(found).splitlines()) == 6 + 1 + 3


def test_a_pin_of_the_file_is_told_before_the_ring() -> None:
    pins = (Pin("kim", "b1", on_down="reject"), Pin("ten", "b0", is_prefix=True), Pin("tenant", "b1", is_prefix=True))
    asked = replace(pool(1, 2), pins=pins)
    told = {}
    for key in (b"kim", b"tenant-7", b"tennis", b"ann"):
        found = explain(asked, key)
        told[key] = [line for line in to_text(found).splitlines() if line.startswith("pin")]
        pin = None if found.pin is None else {"backend": found.pin.backend, "on_down": found.pin.on_down}
        assert to_json(found)["pin"] == pin
        assert found.steps == explain(pool(1, 2), key).steps
    b0, b1 = (f"{backend.name}, {backend.address}" for backend in sorted(asked.backends, key=lambda each: each.name))
    assert told == {
        b"kim": [f"pin       to {b1}, whatever the ring says; while it is out, nobody serves"],
        b"tenant-7": [f"pin       to {b1}, whatever the ring says; while it is out, as the ring says:"],
        b"tennis": [f"pin       to {b0}, whatever the ring says; while it is out, as the ring says:"],
        b"ann": [],
    }


@given(st.binary(min_size=1))
def test_with_prefer_local_those_at_home_come_first_as_a_proxy_has_it(key: bytes) -> None:
    backends = tuple(BackendSpec(f"b{n}", Address("10.0.0.1", n), zone="ab"[n % 2]) for n in range(1, 7))
    asked = PoolSpec("web", backends, vnodes=64, prefer_local=True)
    for zone in ("", "a", "b", "c"):
        config = Config((), (asked,), (), zone=zone)
        snapshot = build_snapshot(config, 1, Layout().assign(row_keys(config), 1))
        walk = [backend.name for backend in snapshot.pools["web"].walk(hash_key(key))]
        found = explain(asked, key, zone)
        assert [step.backend.name for step in found.steps] == walk
        nearest = min(found.steps, key=lambda step: step.distance)
        assert ("the first in the proxy's zone at or after" in to_text(found)) == (nearest.backend.name != walk[0])


def test_of_many_successors_the_first_are_shown_and_the_rest_counted() -> None:
    lines = to_text(explain(pool(*[1] * 15), b"kim")).splitlines()
    assert "          and 4 more" in lines


def test_a_key_that_is_no_text_is_shown_in_hexadecimal() -> None:
    assert '0xff0a (2 bytes)' in to_text(explain(pool(1), b"\xff\n"))  # fmt: skip
    assert to_json(explain(pool(1), b"\xff\n"))["key_hex"] == "ff0a"


def test_nobody_owns_a_key_where_nobody_has_a_token() -> None:
    found = explain(pool(0, 0), b"kim")
    assert found.steps == ()
    assert "owner     nobody" in to_text(found)
    assert to_json(found)["owner"] is None


def test_json_keeps_all_64_bits_of_a_position() -> None:
    found = explain(pool(1, 1), b"kim")
    read = json.loads(json.dumps(to_json(found)))
    assert int(read["hash"], 16) == found.hash
    assert int(read["owner"]["token"], 16) == found.steps[0].token
    assert [backend["name"] for backend in read["backends"]] == ["b0", "b1"]
    assert len(read["successors"]) == 1
