"""`lbproxy simulate` as it is typed: the presets show the figures they are for, and every error is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lbproxy import cli
from lbproxy.dataplane import deadlines
from lbproxy.simulate import machine, options, presets_load, presets_placement, scenes

Output = pytest.CaptureFixture[str]
Rows = list[dict[str, Any]]


def simulated(capsys: Output, *arguments: str) -> dict[str, Any]:
    """What `lbproxy simulate --json` says."""
    assert cli.main(["simulate", "--json", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    document: dict[str, Any] = json.loads(out)
    return document


def by(rows: Rows, *keys: str) -> dict[Any, dict[str, Any]]:
    """Rows by the values of these columns."""
    if len(keys) == 1:
        return {row[keys[0]]: row for row in rows}
    return {tuple(row[key] for key in keys): row for row in rows}


# The presets


def test_seeds_move_four_fifths_or_one_fifth(capsys: Output) -> None:
    tables = simulated(capsys, "seeds")["tables"]
    moves = by(tables["moves"], "algorithm")
    assert moves["mod"]["moved"] == pytest.approx(0.80, abs=0.005)
    for name in ("ring", "rendezvous", "jump", "maglev", "partitions"):
        assert moves[name]["moved"] == pytest.approx(0.20, abs=0.02)
    for name in ("ring", "one-point", "rendezvous", "jump", "partitions"):
        assert moves[name]["needless"] == 0
    assert moves["mod"]["needless"] == pytest.approx(0.60, abs=0.005)
    assert 0 < moves["maglev"]["needless"] < 0.01
    assert tables["shares"] == [{"points": 1, "x": 0.2, "y": 0.8}, {"points": 3, "x": 0.55, "y": 0.45}]


def test_vnodes_make_shares_even(capsys: Output) -> None:
    rows = by(simulated(capsys, "vnodes", "--trials", "11")["tables"]["imbalance"], "vnodes")
    expected = {
        1: (1.93, 2.87, 4.96), 100: (1.10, 1.15, 1.26), 150: (1.09, 1.13, 1.22), 200: (1.07, 1.11, 1.19),
        1000: (1.03, 1.05, 1.07),
    }  # fmt: skip
    assert list(rows) == [1, 3, 100, 150, 200, 1000]
    for vnodes, peaks in expected.items():
        found = [rows[vnodes][f"backends_{size}"] for size in (4, 10, 100)]
        assert [peak - 1 for peak in found] == pytest.approx([peak - 1 for peak in peaks], rel=0.35)
    for size in (4, 10, 100):
        peaks_of_size = [row[f"backends_{size}"] for row in rows.values()]
        assert peaks_of_size[0] > peaks_of_size[2] > peaks_of_size[-1]


def test_jump_has_the_four_quantities(capsys: Output) -> None:
    rows = by(simulated(capsys, "jump", "--trials", "4")["tables"]["fillings"], "epsilon", "points")
    expected = {
        (0.1, 1): (0.837, 6.8, 46.3, 1080), (0.1, None): (0.620, 2.6, 2.61, 3265),
        (0.3, 1): (0.603, 19.0, 10.6, 1188), (0.3, None): (0.250, 6.5, 1.34, 4306),
        (1.0, 1): (0.220, 51.3, 2.2, 2413), (1.0, None): (0.004, 9.7, 1.00, 8147),
        (0.25, 100): (0.257, 6.8, 1.35, 4340),
    }  # fmt: skip
    for point, (full, variance, probes, until_full) in expected.items():
        row = rows[point]
        assert row["full"] == pytest.approx(full, abs=0.02)
        assert row["variance"] == pytest.approx(variance, rel=0.1)
        assert row["probes"] == pytest.approx(probes, rel=0.3)
        assert row["until_full"] == pytest.approx(until_full, rel=0.3)


@pytest.mark.parametrize("workers", ["1", "2", "4"])
def test_a_hot_key_hurts_nobody_else(capsys: Output, workers: str) -> None:
    """The issue's table: with the default gap at 200 in flight, and with the hard bound at 1,000."""
    arguments = ("hot", "--hot-keys", "spread", "--workers", workers, "--seconds")
    rows = simulated(capsys, *arguments, "9", "--clients", "200", "--min-gap", "auto")["tables"]["hot"]
    rows += simulated(capsys, *arguments, "5", "--clients", "1000", "--min-gap", "0")["tables"]["hot"]
    points = by(rows, "in_flight", "min_gap", "hot")
    for in_flight, min_gap in ((200, "auto"), (1000, "0")):
        for hot, at_most in ((0.0, 0.01), (0.1, 0.01), (0.2, 0.01), (0.4, 0.02)):
            row = points[in_flight, min_gap, hot]
            assert row["others_away"] <= at_most
            assert (row["neighbours_away"] or 0) <= at_most
            assert row["found_s"] is None if not hot else 0 < row["found_s"] <= 2
            if min_gap == "0":
                assert row["peak"] <= 1.30


def test_without_spreading_its_neighbours_leave(capsys: Output) -> None:
    """What HAProxy and Envoy do: 36, 55, 74 % and 32, 56, 70 % of the neighbours' requests."""
    rows = simulated(capsys, "hot", "--hot-keys", "off", "--clients", "200", "--seconds", "12")["tables"]["hot"]
    points = by(rows, "min_gap", "hot")
    for hot, away in ((0.1, 0.34), (0.2, 0.555), (0.4, 0.72)):
        assert points["0", hot]["neighbours_away"] == pytest.approx(away, abs=0.06)
        assert points["auto", hot]["neighbours_away"] > 0.15
    assert 0.04 < points["0", 0.0]["others_away"] < 0.08


def test_spill_moves_only_the_hot_key(capsys: Output) -> None:
    rows = simulated(capsys, "hot", "--hot-keys", "spill", "--clients", "200", "--min-gap", "auto", "--seconds", "9")
    for row in rows["tables"]["hot"]:
        assert (row["neighbours_away"] or 0) <= 0.01
        assert row["others_away"] <= 0.01


def test_the_gap_trades_useless_spill_for_a_peak(capsys: Output) -> None:
    rows = simulated(capsys, "gap", "--clients", "80", "--seconds", "20")["tables"]["gap"]
    rows += simulated(capsys, "gap", "--clients", "200", "--seconds", "12")["tables"]["gap"]
    points = by(rows, "in_flight", "min_gap")
    for in_flight in (80, 200):
        away = [points[in_flight, gap]["others_away"] for gap in ("0", "2", "4", "8", "12")]
        peaks = [points[in_flight, gap]["peak"] for gap in ("0", "2", "4", "8", "12")]
        assert away == sorted(away, reverse=True)
        assert peaks == sorted(peaks)
        assert points[in_flight, "0"]["peak"] <= 1.30
        assert points[in_flight, "auto"]["others_away"] < 0.01
    assert 0.04 < points[200, "0"]["others_away"] < 0.08
    assert points[200, "auto"]["peak"] == pytest.approx(1.6, abs=0.05)


# One's own scene


def test_the_same_seed_gives_the_same_and_another_does_not(capsys: Output) -> None:
    arguments = ("--hot", "20%", "--workers", "3", "--seconds", "5", "--algorithms", "lbproxy,random-jump", "--seed")
    first = simulated(capsys, *arguments, "7")
    assert simulated(capsys, *arguments, "7") == first
    assert simulated(capsys, *arguments, "8")["tables"] != first["tables"]


def test_shares_add_up(capsys: Output) -> None:
    document = simulated(capsys, "--backends", "a=1,b=2,c=0.5", "--seconds", "5", "--factor", "off")
    rows = by(document["tables"]["backends"], "backend")
    assert list(rows) == ["a", "b", "c"]
    for share in ("expected", "owned", "served"):
        assert sum(row[share] for row in rows.values()) == pytest.approx(1)
    assert rows["b"]["expected"] == pytest.approx(2 / 3.5)
    assert rows["b"]["owned"] == pytest.approx(2 / 3.5, abs=0.05)
    assert document["settings"]["factor"] is None


def test_a_hot_spell_is_found_and_forgotten(capsys: Output) -> None:
    arguments = ("--hot", "20%", "--hot-from", "4s", "--hot-until", "9s", "--seconds", "22", "--workers", "2")
    [row] = simulated(capsys, *arguments)["tables"]["outcome"]
    assert row["reach"] == 5
    assert 0 < row["found_s"] <= 2
    assert 0 < row["forgotten_s"] <= 10


@pytest.mark.parametrize(
    ("change", "share"),
    [(["--add", "b11"], 1 / 11), (["--remove", "b3"], 0.1), (["--weight", "b2=2"], 10 / 110)],
)
def test_a_change_moves_what_it_must(capsys: Output, change: list[str], share: float) -> None:
    document = simulated(capsys, "--keys", "20000", "--seconds", "1", "--algorithms", "all", *change)
    moves = by(document["tables"]["moves"], "algorithm")
    for name in ("lbproxy", "bounded", "random-jump", "ring", "rendezvous", "partitions"):
        assert moves[name]["keys"] == pytest.approx(share, abs=0.02)
        assert moves[name]["needless"] == 0
    assert moves["lbproxy"]["keys"] == moves["ring"]["keys"]
    assert moves["mod"]["needless"] > 0.5
    assert moves["maglev"]["keys"] == pytest.approx(share, abs=0.03)
    flows = document["tables"]["flows"]
    assert sum(row["lost"] for row in flows) == pytest.approx(sum(row["won"] for row in flows))
    assert sum(row["lost"] for row in flows) == pytest.approx(moves["lbproxy"]["keys"])


def test_jump_hash_can_only_shrink_at_the_end(capsys: Output) -> None:
    last = simulated(capsys, "--seconds", "1", "--algorithms", "jump", "--remove", "b10")["tables"]["moves"]
    first = simulated(capsys, "--seconds", "1", "--algorithms", "jump", "--remove", "b1")["tables"]["moves"]
    assert last[0]["needless"] == 0
    assert first[0]["needless"] > 0.2


def test_a_pool_is_taken_from_a_configuration(capsys: Output, tmp_path: Path) -> None:
    file = tmp_path / "lbproxy.yaml"
    file.write_text(
        "listen: 127.0.0.1:8080\n"
        "pools:\n"
        "  web:\n"
        "    bounded_load: {factor: 1.5}\n"
        "    ring: {vnodes: 100}\n"
        "    match: {path: /}\n"
        "    backends: [{name: x, url: http://10.0.0.1}, {name: y, url: http://10.0.0.2, weight: 3}]\n"
        "  rest:\n"
        "    match: {path: /rest}\n"
        "    backends: [{name: z, url: http://10.0.0.3}]\n"
    )
    document = simulated(capsys, "-c", str(file), "--pool", "web", "--seconds", "2", "--min-gap", "3")
    settings = document["settings"]
    assert settings["backends"] == {"x": 1.0, "y": 3.0}
    assert (settings["factor"], settings["min_gap"], settings["vnodes"]) == (1.5, 3, 100)
    assert cli.main(["simulate", "-c", str(file)]) == 2
    assert capsys.readouterr().err == ("lbproxy simulate: there are several pools, name one with --pool: web, rest\n")


def test_the_table_is_for_people(capsys: Output) -> None:
    assert cli.main(["simulate", "--seconds", "2", "--add", "b11=2"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0].startswith("What became of the requests, 200.0 in flight")
    assert lines[1].split()[:2] == ["algorithm", "requests"]
    assert any(line.startswith("b11 ") for line in lines)
    assert "What it moves: b11 added with weight 2" in out
    assert all(line == line.rstrip() for line in lines)


# Pictures


@pytest.mark.parametrize(
    "arguments",
    [
        ["seeds", "--keys", "1000"],
        ["vnodes", "--trials", "1"],
        ["jump", "--trials", "1"],
        ["hot", "--seconds", "1", "--clients", "50"],
        ["gap", "--seconds", "1", "--clients", "50"],
        ["--seconds", "1", "--algorithms", "lbproxy,mod", "--backends", "a<b=1,c&d=2"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_plot_is_a_picture(capsys: Output, tmp_path: Path, arguments: list[str]) -> None:
    file = tmp_path / "chart.svg"
    simulated(capsys, *arguments, "--plot", str(file))
    root = ElementTree.parse(file).getroot()
    name = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{name}svg"
    assert root.get("role") == "img"
    assert root.findtext(f"{name}title")
    assert root.findtext(f"{name}desc")
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    shapes = [*root.iter(f"{name}rect"), *root.iter(f"{name}circle")]
    assert len(shapes) > 4
    for shape in shapes:
        x, y = ("x", "y") if "x" in shape.attrib else ("cx", "cy")
        assert 0 <= float(shape.attrib[x]) <= width
        assert 0 <= float(shape.attrib[y]) <= height
        assert float(shape.get("height", "0")) >= 0


# What is refused


def test_zeros_before_a_whole_number_do_not_cut_it_short() -> None:
    assert options.whole(0, 65535)("0000000008080") == 8080


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nothing"], "invalid choice: 'nothing'"),
        (["--hot", "20"], "20 is not a share such as 20% or 0.2"),
        (["--hot", "-1%"], "expected one argument"),
        (["--service", "200"], "200 is not a duration such as 200ms or 5s"),
        (["--service", "0s"], "0s is too short: an answer takes 0.001ms at the least"),
        (["--factor", "0.9"], "0.9 is not a number from 1 up, nor off"),
        (["--factor", "nan"], "nan is not a number from 1 up, nor off"),
        (["--min-gap", "-"], "- is not a whole number, nor auto"),
        (["--backends", "0"], "0 is not a whole number from 1 to 10000"),
        (["--backends", "a,a"], "a backend is named twice"),
        (["--backends", "a=0,b=0"], "no backend has a weight"),
        (["--backends", "a=x"], "a=x is not a backend with its weight"),
        (["--backends", "a=1000000"], "the weights make 1,024,000,000 tokens, more than 5,000,000"),
        (["hot", "--vnodes", "100000", "--backends", "51"], "the weights make 5,100,000 tokens"),
        (["--add", "x=5000"], "the weights make 5,130,240 tokens"),
        (["--weight", "b1"], "b1 is not a backend with its weight"),
        (["--weight", "b99=2"], "there is no backend b99"),
        (["--backends", "red,blue", "--remove", "bleu"], "there is no backend bleu, did you mean blue?"),
        (["--add", "b1"], "there already is a backend b1"),
        (["--add", "x", "--add", "x=2"], "there already is a backend x"),
        (["--backends", "1", "--remove", "b1"], "no backend with a weight would be left"),
        (["--algorithms", "magic"], "there is no algorithm magic; there are lbproxy, bounded"),
        (["--plot", "chart.png"], "chart.png does not end in .svg, the one format that can be drawn"),
        (["seeds", "--hot", "20%"], "the preset seeds does not take --hot"),
        (["gap", "--factor", "off"], "the preset gap needs a bound"),
        (["--trials", "3"], "--trials goes with a preset only"),
        (["--rate", "10", "--clients", "5"], "choose one"),
        (["--hot-until", "5s"], "--hot-until goes with --hot"),
        (["--pool", "web"], "--pool goes with -c FILE or --from-log FILE"),
        (["--speed", "2"], "--speed goes with --from-log only"),
        (["--from-log", "x", "--zipf", "1"], "--zipf describes imagined traffic"),
        (["--seconds", "5", "--warm-up", "5"], "nothing would count"),
    ],
)
def test_a_misuse_is_one_line_and_exit_2(capsys: Output, arguments: list[str], complaint: str) -> None:
    assert cli.main(["simulate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    [line] = err.splitlines()
    assert line.startswith("lbproxy simulate: ")
    assert complaint in line


def test_a_file_that_cannot_be_written_is_one_line_and_exit_1(capsys: Output, tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "chart.svg"
    assert cli.main(["simulate", "seeds", "--keys", "10", "--plot", str(file)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert str(file) in line


def test_help_names_every_preset(capsys: Output) -> None:
    assert cli.main(["simulate", "--help"]) == 0
    out = capsys.readouterr().out
    for name, meaning in options.PRESETS.items():
        assert name in out
        assert meaning in out


# What is written down twice


def test_the_options_know_the_algorithms() -> None:
    assert options._ALGORITHMS == scenes.ALGORITHMS
    assert all(scenes.placement(name, [("a", 1.0)], 10).owner(5) == "a" for name in scenes.ALGORITHMS)


def test_time_passes_as_in_the_data_plane() -> None:
    assert machine.TICK_S == deadlines.TICK


def test_the_presets_are_the_figures_that_are_asked_for() -> None:
    assert presets_placement.VNODES == (1, 3, 100, 150, 200, 1000)
    assert presets_placement.SIZES == (4, 10, 100)
    assert (presets_placement.BINS, presets_placement.BALLS) == (1000, 10_000)
    assert presets_load.HOT_SHARES == (0.0, 0.1, 0.2, 0.4)
    assert presets_load.HOT_IN_FLIGHT == (200, 1000)
    assert presets_load.GAPS == (0, 2, 4, 8, 12, None)
    assert presets_load.GAP_IN_FLIGHT == (80, 200, 400, 1000)
