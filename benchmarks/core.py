"""What single calls of the core cost, and how even a ring is: `python -m benchmarks.core`.

Figures are medians of several rounds on whatever machine this runs on; nothing here fails a build.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from statistics import fmean, median, pstdev
from typing import Final

from lbproxy.core.account import Account, Backend
from lbproxy.core.affinity import key_finder
from lbproxy.core.bound import Bound
from lbproxy.core.forge import build_ring
from lbproxy.core.hashing import hash_key
from lbproxy.core.headers import Shape
from lbproxy.core.hotkeys import HotKeys, Meter
from lbproxy.core.ledger import row_width
from lbproxy.core.moves import moved
from lbproxy.core.ring import Ring
from lbproxy.core.spec import Address, BackendSpec, KeySource, Sticky

SHAPE: Final = Shape((b"Host", b"User-Agent", b"Cookie", b"X-User-ID"), frozenset())
VALUES: Final = (b"example.com", b"curl/8.5", b"theme=dark; sid=8f14e45fceea167a; lang=en", b"user-12345")
TARGET: Final = b"/users/12345/orders?limit=50&user=12345"
SOURCES: Final = (
    KeySource("header", "X-User-ID"),
    KeySource("cookie", "sid"),
    KeySource("query", "user"),
    KeySource("path_segment", index=1),
)


def seconds(call: Callable[[], object], rounds: int = 3) -> float:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return median(taken)


def nanoseconds_each(call: Callable[[int], object], items: Iterable[int]) -> float:
    """The median time of one call in a loop, less that of the loop."""
    listed = list(items)

    def loop() -> None:
        for _ in listed:
            pass

    def run() -> None:
        for item in listed:
            call(item)

    return (seconds(run, 5) - seconds(loop, 5)) / len(listed) * 1e9


def members(count: int) -> list[tuple[str, float]]:
    return [(f"backend-{i}", 1.0) for i in range(count)]


def building() -> None:
    print("build a ring, seconds")
    for count in (10, 100, 1000):
        pool = members(count)
        ring = build_ring(pool)
        fresh = seconds(partial(build_ring, pool))
        again = seconds(partial(build_ring, pool[1:], reuse=ring))
        compared = seconds(partial(moved, ring, build_ring(pool[1:], reuse=ring)))
        print(f"  {count:5} x 1024: {fresh:.4f} afresh, {again:.4f} with one less, {compared:.4f} to say what moves")


def asking() -> None:
    print("ask a ring, nanoseconds")
    for count in (10, 1000):
        ring = build_ring(members(count))
        hashes = [hash_key(b"user-%d" % i) for i in range(200_000)]
        print(
            f"  {count:5} x 1024: owner {nanoseconds_each(ring.owner, hashes):.0f}, "
            f"the first 3 of the walk {nanoseconds_each(partial(first, ring), hashes[:20_000]):.0f}, "
            f"all of it {nanoseconds_each(partial(first, ring, count=count), hashes[:200]):.0f}"
        )


def first(ring: Ring, h: int, count: int = 3) -> list[int]:
    return list(islice(ring.walk(h), count))


def finding() -> None:
    keys = [b"user-%d" % i for i in range(1000)]
    print("find and hash a key, nanoseconds")
    print(f"  hash: {nanoseconds_each(lambda i: hash_key(keys[i]), range(1000)):.0f}")
    for source in SOURCES:
        finder = key_finder(Sticky((source,)))

        def find(_: int, finder: Callable[..., bytes | None] = finder) -> bytes | None:
            return finder(SHAPE, VALUES, TARGET, "192.0.2.1")

        print(f"  {source.kind}: {nanoseconds_each(find, range(20_000)):.0f}")


def bounding() -> None:
    bound = Bound([1.0] * 10)
    calls: dict[str, tuple[Callable[[int], object], int]] = {
        "room, there is": (lambda n: bound.has_room(3, n, 200), 20),
        "room, past the factor": (lambda n: bound.has_room(3, n, 200), 30),
        "below its share": (lambda n: bound.below_share(3, n, 200), 18),
        "slots": (lambda n: bound.slots(3, n), 200),
    }
    print("the bound of ten backends, nanoseconds")
    for title, (call, argument) in calls.items():
        print(f"  {title}: {nanoseconds_each(call, [argument] * 50_000):.0f}")


def metering() -> None:
    hashes = [hash_key(b"user-%d" % i) for i in range(20_000)]
    meter, hot_keys = Meter(), HotKeys()
    backend = Backend(BackendSpec("b1", Address("127.0.0.1", 1)), row_width("pool"), 1.0)
    account = Account([0] * (row_width("pool") + row_width("backend")), (), 0, 0)

    def seat(h: int) -> None:
        account.acquire(backend, h)
        account.release(backend, h)

    print("hot keys, nanoseconds a request")
    print(f"  seen: {nanoseconds_each(meter.seen.append, hashes):.0f}")
    print(f"  seat taken and given back: {nanoseconds_each(seat, hashes):.0f}")
    print(f"  is it hot: {nanoseconds_each(hot_keys.reach.get, hashes):.0f}")
    meter.held.update(dict.fromkeys(hashes[:200], 1))
    meter.fold(1.0)
    for requests in (500, 5000):
        meter.seen.clear()

        def tick(at: int, batch: list[int] = hashes[:requests]) -> None:
            meter.seen.extend(batch)
            meter.fold(1.0 + at / 10)

        folded = nanoseconds_each(tick, range(1, 40))
        print(f"  folding {requests} requests: {folded / requests:.0f}, {folded / 1e3:.0f} us a tick")
    table = meter.fold(6.0)
    judged = nanoseconds_each(lambda at: hot_keys.judge(6.0, [table] * 4, lambda _: [0.1] * 10, 1.25, None), range(40))
    print(f"  judging the tables of 4 workers: {judged / 1e3:.0f} us a tick")


def evenness() -> None:
    print("evenness of 100 rings: largest share over mean (median), coefficient of variation")
    for count in (4, 10, 100):
        for vnodes in (1, 3, 100, 160, 1024) if count < 100 else (1, 100, 160):
            rings = [build_ring([(f"pool{pool}-{i}", 1.0) for i in range(count)], vnodes) for pool in range(100)]
            shares = [ring.ownership() for ring in rings]
            peak = median(max(each) * count for each in shares)
            spread = fmean(pstdev(each) * count for each in shares)
            print(f"  {count:4} backends x {vnodes:4}: {peak:.2f}, {spread:.1%}")


if __name__ == "__main__":
    building()
    asking()
    finding()
    bounding()
    metering()
    evenness()
