"""Overrides: when they end and when they must not, and that they survive on disk whatever lies there."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from lbproxy.control.overrides import (
    EXPIRED,
    FILE_CHANGED,
    GONE,
    REPLACED,
    TAKEN_BACK,
    Ended,
    Override,
    Overrides,
    What,
    override_store,
)
from lbproxy.control.store import StoreBroken
from lbproxy.core.spec import Address, BackendSpec, Config, PoolSpec


def config(**weights: float) -> Config:
    backends = tuple(BackendSpec(name, Address("127.0.0.1", 80), weight) for name, weight in weights.items())
    return Config((), (PoolSpec("api", backends),), ())


def made(backend: str, what: What, weight: float = 0.0, until: float | None = None, beneath: float = 1.0) -> Override:
    return Override("api", backend, what, weight, beneath, "ann", 100.0, until, "maintenance")


def test_a_weight_and_a_drain_stand_side_by_side() -> None:
    weight, drain = made("b1", "weight", 3.0), made("b1", "drain")
    overrides = Overrides()
    assert overrides.put(drain) == []
    assert overrides.put(weight) == []
    assert overrides.of("api", "b1") == [weight, drain]
    assert (overrides.weight("api", "b1"), overrides.is_drained("api", "b1")) == (3.0, True)
    assert (overrides.weight("api", "b2"), overrides.is_drained("other", "b1")) == (None, False)
    assert overrides.take_back("api", "b1", ["drain"]) == [Ended(drain, TAKEN_BACK)]
    assert overrides.take_back("api", "b1", ["drain"]) == []
    assert overrides.of("api", "b1") == [weight]


def test_another_weight_replaces_the_first() -> None:
    first, second = made("b1", "weight", 3.0), made("b1", "weight", 4.0)
    overrides = Overrides([first])
    assert overrides.put(second) == [Ended(first, REPLACED)]
    assert list(overrides) == [second]


def test_they_expire_at_their_time() -> None:
    short, long, ever = made("b1", "weight", 3.0, 200.0), made("b2", "drain", until=300.0), made("b3", "drain")
    overrides = Overrides([short, long, ever])
    assert overrides.next_expiry() == 200.0
    assert overrides.expire(199.9) == []
    assert overrides.expire(200.0) == [Ended(short, EXPIRED)]
    assert overrides.expire(1e12) == [Ended(long, EXPIRED)]
    assert (list(overrides), overrides.next_expiry()) == ([ever], None)


def test_the_file_has_the_last_word_over_weights() -> None:
    weight, drain = made("b1", "weight", 3.0), made("b1", "drain")
    overrides = Overrides([weight, drain])
    left, ended = overrides.under(config(b1=1.0, b2=5.0))
    assert (list(left), ended) == ([weight, drain], [])
    left, ended = overrides.under(config(b1=2.0, b2=5.0))
    assert (list(left), ended) == ([drain], [Ended(weight, FILE_CHANGED)])
    left, ended = overrides.under(config(b2=5.0))
    assert (list(left), ended) == ([], [Ended(weight, GONE), Ended(drain, GONE)])
    # The question alone has changed nothing.
    assert list(overrides) == [weight, drain]


def test_kept_and_read_again(tmp_path: Path) -> None:
    store = override_store(str(tmp_path / "overrides.json"))
    assert store.load() == []
    kept = [made("b1", "weight", 0.5, 200.0), made('"é\n', "drain")]
    store.save(kept)
    store.save(kept)
    assert store.load() == kept
    assert stat.S_IMODE((tmp_path / "overrides.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["overrides.json"]


GOOD = {
    "pool": "api", "backend": "b1", "what": "weight", "weight": 1.0, "beneath": 1.0, "who": "", "since": 1.0,
    "until": None, "reason": "",
}  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"overrides": 1}',
        '{"overrides": [1]}',
        "[" * 100_000,
        *[
            json.dumps({"overrides": [GOOD | wrong]})
            for wrong in (
                {"what": "colour"},
                {"weight": -1},
                {"weight": float("nan")},
                {"until": "tomorrow"},
                {"who": 5},
                {"more": 1},
            )
        ],
    ],
)
def test_what_is_no_store_is_said_and_not_guessed_at(tmp_path: Path, content: str) -> None:
    path = tmp_path / "overrides.json"
    path.write_text(content)
    with pytest.raises(StoreBroken, match=f"does not hold overrides: .*; it is {path}.broken now"):
        override_store(str(path)).load()
    path.write_text(json.dumps({"overrides": [GOOD]}))
    assert len(override_store(str(path)).load()) == 1
    assert (tmp_path / "overrides.json.broken").read_text() == content


def test_what_stands_in_the_way_of_a_new_file_is_not_followed(tmp_path: Path) -> None:
    path, passing, other = tmp_path / "overrides.json", tmp_path / "overrides.json.new", tmp_path / "other"
    other.write_text("of somebody else")
    passing.symlink_to(other)
    override_store(str(path)).save([])
    assert other.read_text() == "of somebody else"
    passing.write_text("of a process that was killed")
    passing.chmod(0o666)
    override_store(str(path)).save([])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert override_store(str(path)).load() == []


def test_what_cannot_be_written_leaves_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = override_store(str(tmp_path / "overrides.json"))
    store.save([made("b1", "drain")])

    def fill_the_disk(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fill_the_disk)
    with pytest.raises(StoreBroken, match="No space left"):
        store.save([])
    assert store.load() == [made("b1", "drain")]
    assert [path.name for path in tmp_path.iterdir()] == ["overrides.json"]


def test_a_place_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreBroken, match="cannot write"):
        override_store(str(tmp_path / "missing" / "overrides.json")).save([])
    with pytest.raises(StoreBroken, match="cannot read"):
        override_store(str(tmp_path)).load()
