"""The sample of keys: fair, bounded, of the last minutes, and the same keys for everybody."""

from __future__ import annotations

import random

import pytest

from lbproxy.core.hashing import SPACE, hash_key
from lbproxy.core.sample import WINDOW_S, Keys, KeySample, pack_keys, unpack_keys

HASHES = [hash_key(b"user-%d" % number) for number in range(50_000)]


def test_few_keys_are_all_kept_however_often_they_come() -> None:
    sample = KeySample()
    sample.note(HASHES[:100] * 50, 1.0)
    assert sample.read([], 2.0) == Keys(0, frozenset(HASHES[:100]))


def test_of_many_a_fair_part_is_kept() -> None:
    sample = KeySample(1000)
    for start in range(0, len(HASHES), 500):
        sample.note(HASHES[start : start + 500] + HASHES[:10] * 20, start / 5000)
    keys = sample.read([], 10.0)
    assert 300 <= len(keys.seen) <= 1000
    # The number of keys can be told from the sample, and so can any share of the circle.
    assert len(keys.seen) * 2**keys.bits == pytest.approx(50_000, rel=0.15)
    lower = sum(h < SPACE // 3 for h in keys.seen) / len(keys.seen)
    assert lower == pytest.approx(1 / 3, abs=0.06)


def test_keys_of_long_ago_are_forgotten_and_the_sample_opens_again() -> None:
    sample = KeySample(1000)
    sample.note(HASHES, 1.0)
    bits = sample.read([], 1.0).bits
    assert bits > 5
    for second in range(60):
        sample.note(HASHES[:20], WINDOW_S + 2.0 + second * 10)
    assert sample.read([], WINDOW_S + 600) == Keys(0, frozenset(HASHES[:20]))


def test_workers_samples_are_joined_at_the_coarser_one() -> None:
    busy, calm = KeySample(500), KeySample(500)
    busy.note(HASHES[:40_000], 1.0)
    calm.note(HASHES[39_900:40_100], 1.0)
    one, other = busy.read(HASHES[:64], 1.0), calm.read(HASHES[40_000:40_001], 1.0)
    joined = one.joined(other)
    assert joined == other.joined(one)
    assert joined.bits == one.bits
    mask = (1 << joined.bits) - 1
    assert joined.seen == {h for h in HASHES[:40_100] if not h & mask}
    assert joined.held == {h for h in [*HASHES[:64], HASHES[40_000]] if not h & mask}


def test_what_is_held_is_told_whole_while_the_sample_is() -> None:
    sample = KeySample()
    sample.note(HASHES[:5], 1.0)
    assert sample.read([HASHES[3], HASHES[9]], 1.0).held == {HASHES[3], HASHES[9]}
    crowd = KeySample(100).read(HASHES, 1.0)
    assert 20 < len(crowd.held) <= 100
    assert crowd.held == {h for h in HASHES if not h & ((1 << crowd.bits) - 1)}


def test_as_text_and_back() -> None:
    hashes = frozenset(random.Random(1).randrange(SPACE) for _ in range(100)) | {0, SPACE - 1}
    assert unpack_keys(pack_keys(hashes)) == hashes
    assert unpack_keys("") == frozenset()
    for text in ("00", "zz" * 8, "0" * 15):
        with pytest.raises(ValueError):
            unpack_keys(text)
