"""`lbproxy simulate`: from what was said to what is shown."""

from __future__ import annotations

import io
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Literal, TextIO

from lbproxy.core.ring import MAX_TOKENS
from lbproxy.core.spec import Address, BackendSpec, PoolSpec
from lbproxy.simulate import presets_load, presets_placement
from lbproxy.simulate.changes import Change
from lbproxy.simulate.custom import simulate
from lbproxy.simulate.options import given
from lbproxy.simulate.placements import Members, placements
from lbproxy.simulate.plot import svg
from lbproxy.simulate.progress import Begin, Progress
from lbproxy.simulate.record import Recording, Unusable, lines_of, read
from lbproxy.simulate.report import Report
from lbproxy.simulate.scenes import LBPROXY, Scene
from lbproxy.simulate.traffic import Habits, Load, imagined

# What each preset can be told; everything can be told how to put it.
_OUTPUT: Final = frozenset({"preset", "json", "plot"})
_LOAD: Final = frozenset(
    {"config", "pool", "backends", "vnodes", "factor", "keys", "service", "spread", "seconds", "warm_up", "workers"}
)
_TAKES: Final = {
    "seeds": frozenset({"keys", "vnodes"}),
    "vnodes": frozenset({"trials", "seed"}),
    "jump": frozenset({"trials", "seed"}),
    "hot": _LOAD | {"clients", "min_gap", "hot_keys", "seed", "trials"},
    "gap": _LOAD | {"clients", "hot_keys", "seed", "trials"},
}
_IMAGINED: Final = ("keys", "zipf", "hot", "hot_from", "hot_until", "clients", "rate", "service", "spread", "seconds")


class Misused(Exception):
    """The options do not go together; the message says which in one line."""


def run(arguments: Namespace, pool: PoolSpec | None, zone: str = "") -> int:
    """Simulate and print; returns the exit code. `pool` is that of the configuration, if one was named, and `zone` the
    proxy's own. Raises Misused, Unusable (the log) and OSError."""
    said = given(arguments)
    report = _preset(said, pool) if "preset" in said else _custom(said, pool, zone)
    if "plot" in said:
        with open(said["plot"], "w", encoding="utf-8") as file:
            file.write(svg(report.charts))
    if "json" in said:
        print(json.dumps(report.as_dict(), indent=2, ensure_ascii=False))
    else:
        sys.stdout.write(report.text())
    return 0


# The presets


def _preset(said: dict[str, Any], pool: PoolSpec | None) -> Report:
    name = said["preset"]
    for option in said.keys() - _OUTPUT - _TAKES[name]:
        raise Misused(f"the preset {name} does not take --{option.replace('_', '-')}")
    chosen = {option: said[option] for option in ("keys", "vnodes", "trials", "seed") if option in said}
    if name == "seeds":
        with _progress(len(placements(1))) as begin:
            return presets_placement.seeds(begin, **chosen)
    if name == "vnodes":
        with _progress(len(presets_placement.VNODES) * len(presets_placement.SIZES)) as begin:
            return presets_placement.vnodes(begin, **chosen)
    if name == "jump":
        with _progress(len(presets_placement.FILLINGS)) as begin:
            return presets_placement.jump(begin, **chosen)
    trial = presets_load.Trial(
        _pool(said, pool), _load(said, seconds=15.0), keys=said.get("keys", 2000), trials=said.get("trials", 1)
    )
    usual: tuple[int, ...] = presets_load.HOT_IN_FLIGHT if name == "hot" else presets_load.GAP_IN_FLIGHT
    loads = (said["clients"],) if "clients" in said else usual
    if name == "hot":
        gaps = (trial.pool.bounded_load.min_gap,) if "min_gap" in said else presets_load.HOT_GAPS
        modes = (said["hot_keys"],) if "hot_keys" in said else presets_load.MODES
        with _progress(len(loads) * len(gaps) * len(modes) * len(presets_load.HOT_SHARES) * trial.trials) as begin:
            return presets_load.hot(trial, begin, loads, modes, gaps)
    if trial.pool.bounded_load.factor is None:
        raise Misused("the preset gap needs a bound, and the factor is off")
    with _progress(len(loads) * len(presets_load.GAPS) * trial.trials) as begin:
        return presets_load.gap(trial, begin, loads)


# What was described


def _custom(said: dict[str, Any], pool: PoolSpec | None, zone: str) -> Report:
    for option, needs in (("trials", "a preset"), ("speed", "--from-log")):
        if option in said and (option != "speed" or "from_log" not in said):
            raise Misused(f"--{option} goes with {needs} only")
    _check_together(said)
    algorithms = said.get("algorithms", (LBPROXY,))
    recording = _recording(said) if "from_log" in said else None
    scene = _recorded_scene(said, pool, recording) if recording else _imagined_scene(said, pool)
    scene = replace(scene, zone=zone)
    change = _change(said, scene)
    notes = tuple(_notes(recording)) if recording else ()
    with _progress(len(algorithms)) as begin:
        return simulate(scene, algorithms, change, _settings(scene, said), notes, begin)


def _check_together(said: dict[str, Any]) -> None:
    if "from_log" in said:
        for option in _IMAGINED:
            if option in said:
                raise Misused(f"--{option.replace('_', '-')} describes imagined traffic, --from-log has its own")
    elif "pool" in said and "config" not in said:
        raise Misused("--pool goes with -c FILE or --from-log FILE")
    if "rate" in said and "clients" in said:
        raise Misused("--clients wait for their answers, with --rate nobody does: choose one")
    for option in ("hot_from", "hot_until"):
        if option in said and "hot" not in said:
            raise Misused(f"--{option.replace('_', '-')} goes with --hot")
    if "config" in said and "backends" in said:
        raise Misused("the configuration has its backends; --add, --remove and --weight change them")


def _imagined_scene(said: dict[str, Any], pool: PoolSpec | None) -> Scene:
    load = _load(said, seconds=20.0)
    habits = Habits(
        keys=said.get("keys", 2000),
        zipf=said.get("zipf", 0.0),
        hot=said.get("hot", 0.0),
        hot_from_s=said.get("hot_from", 0.0),
        hot_until_s=said.get("hot_until", float("inf")),
    )
    return Scene(_pool(said, pool), imagined(habits, load.seed), load)


def _load(said: dict[str, Any], seconds: float) -> Load:
    seconds = said.get("seconds", seconds)
    warm_up = said.get("warm_up", min(3.0, seconds / 4))
    if warm_up >= seconds:
        raise Misused(f"nothing would count: the warm-up of {warm_up:g} s is not shorter than the run of {seconds:g} s")
    return Load(
        clients=said.get("clients", 200),
        rate=said.get("rate"),
        service_s=said.get("service", 0.2),
        spread=said.get("spread", 0.1),
        seconds=seconds,
        warm_up_s=warm_up,
        workers=said.get("workers", 1),
        seed=said.get("seed", 1),
    )


def _recording(said: dict[str, Any]) -> Recording:
    name, pool, speed = said["from_log"], said.get("pool"), said.get("speed", 1.0)
    try:
        if name == "-":
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(encoding="utf-8", errors="replace")  # as a file is read
            return read(lines_of(sys.stdin), pool, speed)
        with open(name, encoding="utf-8", errors="replace") as file:
            return read(lines_of(file), pool, speed)
    except Unusable as error:
        raise Unusable(f"{'the log' if name == '-' else name}: {error}") from None


def _recorded_scene(said: dict[str, Any], pool: PoolSpec | None, recording: Recording) -> Scene:
    if pool is None and "backends" not in said:
        if not recording.backends:
            raise Unusable("no backend served anything in the log: say which there are with --backends or -c")
        said = {**said, "backends": tuple((name, 1.0) for name in recording.backends)}
    seconds = max(recording.seconds, 0.1)
    warm_up = said.get("warm_up", min(3.0, seconds / 4))
    if warm_up >= seconds:
        raise Misused(
            f"nothing would count: the warm-up of {warm_up:g} s is not shorter than the log's {seconds:.1f} s"
        )
    load = Load(clients=0, seconds=seconds, warm_up_s=warm_up, workers=said.get("workers", 1), seed=said.get("seed", 1))
    return Scene(_pool(said, pool), recording.traffic, load)


def _notes(recording: Recording) -> Iterator[str]:
    if recording.key_field != "key":
        meant = "the client's address" if recording.key_field == "client" else "the request id"
        yield f"The log has no keys (log.access.key is off): {meant} stands for the user."
    if recording.upgraded:
        yield f"{recording.upgraded:,} upgraded connections were left out."
    if recording.skipped:
        yield f"{recording.skipped:,} lines were no access log lines and were left out."


def _pool(said: dict[str, Any], pool: PoolSpec | None) -> PoolSpec:
    """The pool of the configuration, or one of so many backends, with what was said about it."""
    if pool is None:
        members = said.get("backends", tuple((f"b{number}", 1.0) for number in range(1, 11)))
        nowhere = Address("127.0.0.1", 0)
        pool = PoolSpec("simulated", tuple(BackendSpec(name, nowhere, weight) for name, weight in members))
    if not any(backend.weight for backend in pool.backends):
        raise Misused("no backend has a weight")
    bounded = pool.bounded_load
    if "factor" in said:
        bounded = replace(bounded, factor=None if said["factor"] == "off" else said["factor"])
    if "min_gap" in said:
        bounded = replace(bounded, min_gap=None if said["min_gap"] == "auto" else said["min_gap"])
    mode: Literal["spread", "spill", "off"] = said.get("hot_keys", pool.hot_keys.mode)
    vnodes = said.get("vnodes", pool.vnodes)
    _check_tokens([(backend.name, backend.weight) for backend in pool.backends], vnodes)
    return replace(
        pool,
        vnodes=vnodes,
        bounded_load=bounded,
        hot_keys=replace(pool.hot_keys, mode=mode),
    )


def _change(said: dict[str, Any], scene: Scene) -> Change:
    change = Change(tuple(said.get("add", ())), tuple(said.get("remove", ())), tuple(said.get("weight", ())))
    try:
        after = change.apply(scene.members)
    except ValueError as error:
        raise Misused(str(error)) from None
    _check_tokens(after, scene.pool.vnodes)
    return change


def _check_tokens(members: Members, vnodes: int) -> None:
    tokens = sum(weight for _, weight in members) * vnodes
    if tokens > MAX_TOKENS:
        raise Misused(f"the weights make {tokens:,.0f} tokens, more than {MAX_TOKENS:,}: lower them or --vnodes")


def _settings(scene: Scene, said: dict[str, Any]) -> dict[str, Any]:
    pool, load, habits = scene.pool, scene.load, scene.traffic.habits
    shared = {
        "backends": dict(scene.members),
        "vnodes": pool.vnodes,
        "factor": pool.bounded_load.factor,
        "min_gap": "auto" if pool.bounded_load.min_gap is None else pool.bounded_load.min_gap,
        "hot_keys": pool.hot_keys.mode,
        "workers": load.workers,
        "seconds": load.seconds,
        "warm_up_s": load.warm_up_s,
        "seed": load.seed,
    }
    if scene.traffic.recorded:
        return {
            **shared,
            "from_log": said["from_log"],
            "keys": len(scene.traffic.keys),
            "speed": said.get("speed", 1.0),
        }
    spell = {"hot_from_s": habits.hot_from_s} if habits.hot else {}
    if habits.hot and habits.hot_until_s != float("inf"):
        spell["hot_until_s"] = habits.hot_until_s
    loop = {"rate": load.rate} if load.rate is not None else {"clients": load.clients}
    return {
        **shared, "keys": habits.keys, "zipf": habits.zipf, "hot": habits.hot, **spell, **loop,
        "service_s": load.service_s, "spread": load.spread,
    }  # fmt: skip


@contextmanager
def _progress(parts: int, sink: TextIO | None = None) -> Iterator[Begin]:
    """A bar over so many parts, each of which is begun by a call; it is gone at the end, whatever that was."""
    bar = Progress(sink or sys.stderr, parts)
    begun = 0

    def begin() -> Callable[[float], None]:
        nonlocal begun
        if begun:
            bar.step()
        begun += 1
        return bar.tell

    try:
        yield begin
    finally:
        bar.end()
