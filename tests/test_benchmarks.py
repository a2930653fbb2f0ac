"""The parts of the benchmark that decide what a figure means: they must not lie."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from benchmarks import features, hotkey, loads, proxies, results_file, session, wrk
from benchmarks.figures import DIRECT, CheckResult, LoadResult, Round, summarize
from benchmarks.goals import GOALS, Goal, Results
from benchmarks.machine import free_port
from benchmarks.process import Process
from benchmarks.proxies import Backend, BenchmarkError, Setting
from benchmarks.proxies.base import await_answer
from benchmarks.proxies.lbproxy import render
from benchmarks.report import goal_table, load_table, tables
from benchmarks.session import Plan
from lbproxy.control.config import loads as load_config
from lbproxy.dataplane import settling

CORES = os.sched_getaffinity(0)
ROUND = Round(requests_per_s=1000.0, megabytes_per_s=1.0, median_us=100.0, p99_us=200.0, cpu_us=20.0, busy=0.5)


def result(load: str, **rates: float) -> LoadResult:
    return LoadResult(load, load, {name: (replace(ROUND, requests_per_s=rate),) for name, rate in rates.items()})


def test_rounds_of_several_starts_are_medians_of_all_and_memory_of_the_last() -> None:
    first, second = (
        LoadResult(
            "1m",
            "1m",
            {
                "lbproxy": tuple(
                    replace(ROUND, requests_per_s=rate, peak_rss_bytes=peak, start=start) for rate, peak in took
                )
            },
            complaints,
        )
        for start, took, complaints in (
            (0, ((100.0, 10), (110.0, 20)), ("weak",)),
            (1, ((150.0, 30), (300.0, 35)), ("weak", "loud")),
        )
    )
    joined = first.joined(second)
    summary = joined.summaries()["lbproxy"]
    assert (summary.requests_per_s, summary.spread) == (130.0, 200 / 130)
    assert (summary.first_peak_rss_bytes, summary.last_peak_rss_bytes) == (30, 35)
    assert joined.complaints == ("weak", "loud")


def test_a_load_that_fails_in_a_later_start_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, int]] = []

    def run_load(load: loads.Load, running: object, rounds: int, seconds: int, start: int) -> LoadResult:
        ran.append((load.name, start))
        if (load.name, start) == ("browser", 1):
            raise BenchmarkError("it broke")
        return result(load.name, nginx=100.0 + start)

    no_fleet = SimpleNamespace(started=[], carrying=lambda load: [])
    monkeypatch.setattr(session, "fleet", lambda *_: contextlib.nullcontext(no_fleet))
    monkeypatch.setattr(session, "run_load", run_load)
    monkeypatch.setattr(session, "find_binary", lambda name: name)
    chosen = [load for load in loads.LOADS if load.name in ("small", "browser")]
    results = session.run(Plan((), chosen, starts=3))
    assert ran == [("small", 0), ("browser", 0), ("small", 1), ("browser", 1), ("small", 2)]
    assert list(results.loads) == ["small"]
    assert [each.requests_per_s for each in results.loads["small"].rounds["nginx"]] == [100.0, 101.0, 102.0]
    assert results.failures == ("it broke",)


def goal(start: str) -> Goal:
    return next(goal for goal in GOALS if goal.text.startswith(start))


def test_lbproxy_is_given_a_valid_configuration_with_everything_on(tmp_path: Path) -> None:
    backends = (Backend("b1", 18001), Backend("b2", 18002))
    config = load_config(render(Setting(tmp_path, 18000, 18009, 2, backends, False, 1000)), "bench.yaml")
    (pool,) = config.pools
    assert config.workers == 2
    assert [backend.address.port for backend in pool.backends] == [18001, 18002]
    assert [source.name for source in pool.sticky.keys] == ["X-User-ID"]
    assert pool.health.kind == "http"
    assert pool.bounded_load.factor == 1.25
    assert pool.ejection.consecutive_errors > 0
    assert config.log.access.path == f"{tmp_path}/access.log"
    assert config.admin.listen is not None


def test_medians_and_spread() -> None:
    summary = summarize(
        [replace(ROUND, requests_per_s=rate, peak_rss_bytes=int(rate)) for rate in (90.0, 200.0, 100.0)]
    )
    assert summary.requests_per_s == 100.0
    assert summary.spread == pytest.approx(1.1)
    assert (summary.first_peak_rss_bytes, summary.last_peak_rss_bytes) == (90, 100)


def test_a_goal_is_a_ratio_of_medians_and_unknown_where_a_side_is_missing() -> None:
    half = goal("small keyed GETs: requests/s, of nginx")
    assert half.find(Results({"small": result("small", lbproxy=30.0, nginx=60.0)}, {})) == 0.5
    assert not half.is_met(0.5)
    assert half.is_met(0.55)
    assert half.find(Results({"small": result("small", lbproxy=30.0)}, {})) is None
    assert half.find(Results({}, {})) is None


def test_added_latency_is_over_the_direct_way() -> None:
    latency = LoadResult(
        "latency",
        "latency",
        {
            DIRECT: (replace(ROUND, median_us=20.0),),
            "nginx": (replace(ROUND, median_us=60.0),),
            "lbproxy": (replace(ROUND, median_us=70.0),),
        },
    )
    assert goal("added median latency").find(Results({"latency": latency}, {})) == 1.25
    assert "added us" in load_table(latency).columns


def test_every_goal_names_a_load_or_check_that_exists() -> None:
    names = [proxy.name for proxy in proxies.PROXIES]
    every = {load.name: result(load.name, **dict.fromkeys(names, 1.0)) for load in loads.LOADS}
    direct = replace(ROUND, median_us=50.0)
    every["latency"] = replace(every["latency"], rounds={**every["latency"].rounds, DIRECT: (direct,)})
    figures = {"idle": "pss_kb_each", "slow-upload": "growth_mb", "ring": "build_s"}
    checks = {
        name: CheckResult(name, name, {"lbproxy": {figure: 1.0, "lookup_ns": 1.0}}) for name, figure in figures.items()
    }
    assert set(checks) == set(loads.CHECKS)
    assert [goal.text for goal in GOALS if goal.find(Results(every, checks)) is None] == []


def test_tables_show_failures_first_and_unmet_goals() -> None:
    results = Results({"small": result("small", lbproxy=30.0, nginx=60.0)}, {}, ("close: nginx: refused\nlog\nlast",))
    texts = [table.text() for table in tables(results)]
    assert texts[0].splitlines() == ["FAILED", "what", "close: nginx: refused last"]
    goals = goal_table(results)
    assert goals is not None
    assert ("small keyed GETs: requests/s, of nginx", "at least 0.55", "0.50", "NO") in goals.rows
    assert "| lbproxy | 30 |" in tables(results)[-1].markdown()


def test_the_script_asks_for_what_the_load_says() -> None:
    load = loads.Load("x", "x", path="/p", method="POST", headers=(("Accept", 'a"b'),), body_bytes=7, users=3)
    source = wrk.script(load)
    assert 'wrk.format("POST", "/p", headers, body)' in source
    assert '["Accept"] = "a\\"b"' in source
    assert 'string.rep("x", 7)' in source
    assert len(next(load for load in loads.LOADS if load.name == "browser").headers) == 18  # and Host, X-User-ID


@pytest.mark.parametrize("failed", ["connect", "read", "write", "status", "timeout"])
def test_an_error_that_wrk_counted_is_never_a_figure(failed: str) -> None:
    figures = {"requests": 10, "duration_us": 10**6, "bytes": 1, "median_us": 1, "p99_us": 2}
    good = {**figures, "connect": 0, "read": 0, "write": 0, "status": 0, "timeout": 0}
    assert wrk.parse(f"Running\n{good}\n".replace("'", '"')).duration_s == 1.0
    with pytest.raises(BenchmarkError, match=failed):
        wrk.parse(str({**good, failed: 1}).replace("'", '"'))
    with pytest.raises(BenchmarkError, match="no figures"):
        wrk.parse("unable to connect\n")


def test_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(SystemExit, match="no load 'smal'"):
        loads.select(["smal"])
    with pytest.raises(SystemExit, match="no proxy 'squid'"):
        proxies.select(["squid"])
    chosen, checks = loads.select(["close", "idle", "small"])
    assert [load.name for load in chosen] == ["small", "close"]
    assert checks == ["idle"]


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Process]:
    """A program whose only child burns CPU."""
    burn = "while True: pass"
    spawn = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    process = Process((sys.executable, "-c", spawn), CORES, tmp_path / "log")
    yield process
    process.stop()


def test_the_cpu_of_children_counts(parent: Process) -> None:
    end = time.monotonic() + 20
    while parent.usage().cpu_s < 0.3 and time.monotonic() < end:
        time.sleep(0.02)
    usage = parent.usage()
    assert usage.cpu_s >= 0.3
    assert len(usage.pids) == 2
    assert parent.busiest() != parent.pid
    assert parent.rss_bytes() > parent.pss_bytes() > 2**20
    child = parent.tree()[1]
    parent.stop()
    while Path(f"/proc/{child}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{child}").exists()


def test_the_sink_reads_no_faster_than_its_rate(tmp_path: Path) -> None:
    port = free_port()
    program = Path(loads.__file__).with_name("sink.py")
    command = (sys.executable, "-P", str(program), "--port", str(port), "--rate", "2000000")
    process = Process(command, CORES, tmp_path / "log")
    try:
        await_answer(process, "the sink", port)
        for body, headers in ((b"x" * 600_000, {}), (iter([b"x" * 300_000] * 2), {"Transfer-Encoding": "chunked"})):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            start = time.monotonic()
            connection.request("POST", "/", body, headers, encode_chunked=True)
            assert connection.getresponse().read() == b"600000\n"
            assert time.monotonic() - start >= 0.29
            connection.close()
    finally:
        process.stop()


# What each capability costs


@pytest.mark.parametrize("variant", features.VARIANTS, ids=lambda variant: variant.name)
def test_a_variant_lacks_what_its_name_says(tmp_path: Path, variant: features.Variant) -> None:
    setting = Setting(tmp_path, 18000, 18009, 1, (Backend("b1", 18001),), False, 1000)
    config = load_config(yaml.safe_dump(features.changed(yaml.safe_load(render(setting)), variant)), "bench.yaml")
    (pool,) = config.pools
    has = {
        "hot keys": pool.hot_keys.mode != "off",
        "bounded load": pool.bounded_load.factor is not None,
        "health": pool.health.kind != "none",
        "ejection": pool.ejection.consecutive_errors > 0,
        "retry": pool.retry.attempts > 1,
        "access log": bool(config.log.access.path),
    }
    assert {what for what, is_on in has.items() if not is_on} == {
        what for what in has if variant.name.endswith(" off") and what in variant.name
    }


def test_a_cost_is_taken_within_rounds() -> None:
    def rounds(*cpus: float) -> list[Round]:
        return [replace(ROUND, cpu_us=cpu, requests_per_s=1e6 / cpu) for cpu in cpus]

    taken = {"default": rounds(20.0, 40.0, 20.0), "log-off": rounds(16.0, 35.0, 17.0)}
    base, without = features.table(taken, {"default": "default", "log-off": "log off"}, ()).rows
    assert base == ("default", "50,000", "20.0", "", "", "", "", "", f"{ROUND.p99_us:,.0f}")
    assert without == ("log off", "58,824", "17.0", "4.00", "3.00", "5.00", "15.0", "15.0", f"{ROUND.p99_us:,.0f}")


def test_the_proxy_that_does_not_count_runs_another_function() -> None:
    if not str(settling.__file__).endswith(".py"):
        pytest.skip("lbproxy is compiled here, and then that proxy is left out")
    (uncounted,) = [each for each in features.compared(os.environ) if each.variant is features.UNCOUNTED]
    ask = "from lbproxy.dataplane import recovery, relay; print(recovery.settle.__module__, relay.settle.__module__)"
    env = {**os.environ, **uncounted.environment(Setting(Path(), 0, 0, 1, (), False, 1))}
    said = subprocess.run([sys.executable, "-P", "-c", ask], capture_output=True, text=True, check=True, env=env)
    assert said.stdout.split() == ["sitecustomize", "sitecustomize"]


# RESULTS.md


def test_what_others_have_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    path.write_text(
        "# Title\n\nold\n\n## Method\n\nold tables\n\n### A table\n\n## Notes\n\nby hand\n\n## A hot key\n\n| a |\n"
    )
    plan = Plan((), ())
    results_file.write(plan, Results({"small": result("small", nginx=100.0, lbproxy=60.0)}, {}), ["x", "--write"], path)
    text = path.read_text()
    assert "old" not in text
    assert (
        text.index("## Method")
        < text.index("| lbproxy |")
        < text.index("## Notes\n\nby hand\n\n## A hot key\n\n| a |\n")
    )
    results_file.write_section("A hot key", "new", path)
    results_file.write_section("A third", "other", path)
    assert path.read_text() == text.replace("| a |", "new") + "\n## A third\n\nother\n"
    results_file.write(plan, Results({}, {}), ["x"], path)
    assert path.read_text().endswith("\n## Notes\n\nby hand\n\n## A hot key\n\nnew\n\n## A third\n\nother\n")


def test_the_page_of_results_is_one_that_is_kept() -> None:
    sections = results_file.sections(results_file.PATH.read_text())
    assert list(sections)[:2] == ["", "Method"]
    assert hotkey.TITLE in sections
