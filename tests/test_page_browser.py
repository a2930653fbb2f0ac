"""The page in a real browser: alive, by keyboard, with many backends, with its writes, and without scripts."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbproxy.control.admin.openapi import HEAVIEST
from tests.browser import Browser
from tests.page_site import DESKTOP, FIELD, LIVE, PHONE, TOKEN, Site, focused, overflowing, text, visit, weigh
from tests.page_world import START, World, equal_pool, iso


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


@pytest.fixture
def served() -> Iterator[Site]:
    with Site(World(equal_pool(5, b5=2.0))) as made:
        made.pass_time(30, 200)
        yield made


# Alive


def test_it_opens_without_complaint_and_comes_alive(browser: Browser, served: Site) -> None:
    visit(browser, served)
    assert text(browser, "h1") == "All 5 backends serve."
    assert browser.run("return document.title") == "All well \u2013 lbproxy"
    before = text(browser, "#p0-caption")
    served.pass_time(2, 500)
    browser.wait_for("document.querySelector('#p0-caption').innerText !== arguments[0]", before)
    assert browser.complaints() == []
    assert (
        browser.run("return performance.getEntriesByType('resource').filter(e => !e.name.startsWith(location.origin))")
        == []
    )


def test_an_event_shows_within_a_second(browser: Browser, served: Site) -> None:
    visit(browser, served)
    served.pass_time(1)
    took_s = [until_shown(browser, served, "b3")]
    assert text(browser, "h1").startswith("b3 ")
    assert browser.run("return document.title").startswith("Notice: b3 ")
    assert browser.run("return document.getElementById('icon').href").endswith("/notice.svg")
    assert "down" in text(browser, "tr[data-backend=b3] .state")
    assert "b3" in text(browser, "#p0-health")
    for name in ("b4", "b5"):  # on a busy machine one may be late
        if min(took_s) >= 1.0:
            took_s.append(until_shown(browser, served, name))
    assert min(took_s) < 1.0


def until_shown(browser: Browser, served: Site, name: str) -> float:
    """How long it takes until the page shows a backend that has just gone."""
    began = time.monotonic()
    served.do(lambda: served.world.set_state("api", name, "down"))
    browser.wait_for("document.querySelector('#events').innerText.includes(arguments[0])", f"{name} is down")
    return time.monotonic() - began


def test_a_verdict_is_announced_when_it_changes_and_not_when_it_counts_on(browser: Browser, served: Site) -> None:
    visit(browser, served)
    assert text(browser, "#announced") == ""
    served.do(lambda: served.world.set_state("api", "b3", "down"))
    browser.wait_for("document.querySelector('#announced').textContent.includes('b3 is down')")
    browser.run(
        "window.changes = 0; new MutationObserver(() => window.changes += 1)"
        ".observe(document.querySelector('#announced'), {childList: true, subtree: true, characterData: true})"
    )
    served.pass_time(15, 300)
    browser.wait_for("document.querySelector('.verdict p')?.innerText.includes('The next backends')")
    served.pass_time(3, 300)
    assert browser.run("return window.changes") == 0


def test_what_is_shown_is_what_the_server_would_show_anew(browser: Browser, served: Site) -> None:
    visit(browser, served)
    for at in range(3):
        served.pass_time(1, 300)
        served.do(lambda at=at: served.world.tell("other", f"event {at}"))  # type: ignore[misc]
    browser.wait_for("document.querySelector('#events').innerText.includes('event 2')")
    number = served.watch.board.number
    shown = {name: served.watch.board.piece(name) for name in ("p0-b0", "p0-figures", "p0-health", "p0-hot", "verdict")}
    if served.watch.board.number == number:
        for name, html in shown.items():
            same = """
                const made = document.createElement('template');
                made.innerHTML = arguments[1];
                const old = document.getElementById(arguments[0]).cloneNode(true);
                for (const each of [old, ...old.querySelectorAll('*')])
                    for (const {name} of [...each.attributes])
                        if (name.startsWith('data-ui') || name === 'aria-pressed') each.removeAttribute(name);
                return [old.outerHTML, made.innerHTML]
            """
            old, new = browser.run(same, name, html)
            assert old == new


def test_patching_makes_one_tree_into_another(browser: Browser, served: Site) -> None:
    visit(browser, served)
    wrong = browser.run(
        """
        return import('/page/patch.js').then(({ patch, parse }) => {
            let seed = 7;
            const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
            const tree = (depth) => {
                const tag = ['p', 'b', 'i', 'li'][random(4)];
                const id = random(3) ? '' : ` id="x${random(1e9)}"`;
                const mark = random(2) ? ` class="c${random(3)}"` : '';
                const below = () => Array.from({ length: random(4) }, () => tree(depth - 1)).join('');
                const inside = depth ? below() : `t${random(4)}`;
                return `<${tag}${id}${mark}>${inside}</${tag}>`;
            };
            const wrong = [];
            for (let round = 0; round < 400; round += 1) {
                const [before, after] = [`<div>${tree(3)}${tree(2)}</div>`, `<div>${tree(2)}${tree(3)}</div>`];
                const place = document.createElement('section');
                place.append(parse(before));
                patch(place.firstChild, parse(after));
                if (place.innerHTML !== parse(after).outerHTML) wrong.push([before, after, place.innerHTML]);
            }
            return wrong;
        })
        """
    )
    assert wrong == []


def test_a_list_that_grows_at_its_top_keeps_its_elements(browser: Browser, served: Site) -> None:
    served.do(lambda: served.world.tell("other", "the first"))
    visit(browser, served)
    browser.run("window.first = document.querySelector('#events li')")
    served.do(lambda: served.world.tell("other", "the second"))
    browser.wait_for("document.querySelector('#events').innerText.includes('the second')")
    assert browser.run("return document.querySelectorAll('#events li')[1] === window.first")


def test_a_backend_that_comes_is_shown_and_what_was_typed_stays(browser: Browser, served: Site) -> None:
    visit(browser, served)
    browser.type(FIELD, "ann")
    browser.wait_for("document.querySelector('.key q')")

    def grow() -> None:
        served.world.models["api"] = equal_pool(7)
        served.world.tell("reload", "configuration 2 is in force")

    served.do(grow)
    browser.wait_for("document.querySelector('tr[data-backend=b7]')")
    browser.wait_for("document.querySelector('.key q')?.innerText === 'ann'")
    assert browser.run("return document.querySelector(arguments[0]).value", FIELD) == "ann"
    assert browser.complaints() == []


def test_where_no_stream_can_be_had_it_asks_again_and_again(browser: Browser, served: Site) -> None:
    served.is_broken = True
    browser.look_like(*DESKTOP)
    browser.open(served.url)
    served.do(lambda: served.world.tell("other", "news without a stream"))
    served.pass_time(1)
    browser.wait_for("document.querySelector('#events').innerText.includes('news without a stream')")
    assert browser.wait_for(LIVE)


def test_when_the_server_is_gone_the_page_says_how_old_it_is(browser: Browser) -> None:
    with Site(World(equal_pool(2))) as served:
        served.pass_time(2, 50)
        visit(browser, served)
    browser.wait_for("document.querySelector('.news.stale')")
    assert re.fullmatch(r"no news for \d+ s", text(browser, "#news"))
    assert "is-stale" in browser.run("return document.body.className")


def test_when_the_server_is_gone_nothing_is_said_of_a_key_or_a_weight_but_that(browser: Browser) -> None:
    with Site(World(equal_pool(2))) as served:
        served.pass_time(2, 50)
        visit(browser, served)
        browser.type(FIELD, "ann")
        browser.wait_for("document.querySelector('.key q')?.innerText === 'ann'")
    browser.type(FIELD, "a")
    browser.wait_for("!document.querySelector('.key q')")
    assert text(browser, ".key") == "The proxy does not answer."
    assert not browser.run("return document.querySelector('.track[data-ui-on]')"), "no arc is that of this key"
    weigh(browser, "b1", "3")
    browser.wait_for("document.querySelector('.outcome .bad')")
    assert text(browser, ".outcome") == "The proxy does not answer."


# Keys and backends


def test_typing_a_key_shows_where_it_lives(browser: Browser, served: Site) -> None:
    visit(browser, served)
    browser.type(FIELD, "ann")
    browser.wait_for("document.querySelector('.key q')?.innerText === 'ann'")
    order = [backend.name for backend in served.world.models["api"].preference("ann")]
    assert text(browser, ".key > p") == f"ann lives on {order[0]}."
    shown = browser.run("return [...document.querySelectorAll('.key li b')].map(e => e.innerText)")
    assert shown == order
    turn = int(served.world.models["api"].explain(b"ann")["hash"], 16) / 2**64 * 360
    needle = browser.run("return document.querySelector('.needle').getAttribute('transform')")
    assert float(needle.removeprefix("rotate(").split()[0]) == pytest.approx(turn, abs=0.01)
    lit = "return [...document.querySelectorAll('.track[data-ui-on]')].map(e => e.dataset.backend)"
    assert browser.run(lit) == [order[0]]
    served.do(lambda: served.world.set_state("api", order[0], "down"))
    browser.wait_for("document.querySelector('.key .serving b')?.innerText === arguments[0]", order[1])
    browser.press("\ue00c")
    browser.wait_for("document.querySelector('.key .none')")
    assert browser.run(lit) == []
    assert browser.run("return document.querySelector('.needle').childElementCount") == 0


def test_the_busiest_key_is_known_again_when_it_is_typed(browser: Browser, served: Site) -> None:
    visit(browser, served)
    browser.type(FIELD, "user-0")
    browser.wait_for("document.querySelector('.hot li[data-ui-same]')")
    assert browser.run("return document.querySelectorAll('.hot li[data-ui-same]').length") == 1


def test_a_key_that_no_request_can_ask_for_gets_no_others_answer(browser: Browser, served: Site) -> None:
    visit(browser, served)
    browser.type(FIELD, "ann")
    browser.wait_for("document.querySelector('.key q')?.innerText === 'ann'")
    long = "const e = document.querySelector(arguments[0]); e.value = 'a'.repeat(9000); e.form.requestSubmit()"
    browser.run(long, FIELD)
    browser.wait_for("!document.querySelector('.key q')")
    assert text(browser, ".key") == "The proxy answers 400."


def test_picking_a_backend_lights_its_arcs(browser: Browser, served: Site) -> None:
    visit(browser, served)
    browser.click("tr[data-backend=b2] .pick")
    assert browser.run("return document.querySelector('.track[data-ui-on]').dataset.backend") == "b2"
    assert browser.run("return document.querySelector('[data-backend=b2] .pick').ariaPressed") == "true"
    served.pass_time(1, 100)
    assert browser.run("return document.querySelector('tr[data-ui-picked]').dataset.backend") == "b2"
    browser.click("tr[data-backend=b2] .pick")
    assert not browser.run("return document.querySelector('.track[data-ui-on]')")


def test_everything_by_keyboard(browser: Browser, served: Site) -> None:
    visit(browser, served)
    browser.press("/")
    assert focused(browser) == "key"
    browser.press("\ue00c")
    assert focused(browser) == "BODY"
    visit(browser, served)
    stops: list[str] = []
    while "BODY" not in stops:
        browser.press("\ue004")
        stops.append(focused(browser))
        outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
        if stops[-1] != "BODY":
            assert outline != "none", f"one cannot see that {stops[-1]} has the focus"
    assert stops[0] == "skip"
    assert stops.count("pick") == 5
    assert "key" in stops
    assert "@token" not in stops, "what does nothing yet takes no focus"
    browser.run("document.querySelector('[data-backend=b4] .pick').focus()")
    browser.press("\ue007")
    assert browser.run("return document.querySelector('.track[data-ui-on]').dataset.backend") == "b4"


def test_every_number_is_explained_to_those_who_cannot_hover(browser: Browser, served: Site) -> None:
    """In words of the page, by keyboard, on a phone, and without scripts."""
    labels = "return [...document.querySelectorAll('thead th[title], .figure dt')].map(e => e.innerText.trim())"
    for size, script in ((DESKTOP, True), (PHONE, True), (DESKTOP, False)):
        browser.look_like(*size, script=script)
        browser.open(served.url)
        browser.run("document.querySelector('.terms summary').focus()")
        assert not browser.run("return document.querySelector('.terms').open")
        browser.press("\ue007")
        terms = browser.run("return [...document.querySelectorAll('.terms dt')].map(e => e.innerText)")
        assert {word for label in browser.run(labels) for word in label.split(", ")[:1]} <= {*terms, ""}
        assert "seconds" in text(browser, ".terms")
        assert overflowing(browser) == []


def test_the_table_is_sorted_by_its_heads(browser: Browser, served: Site) -> None:
    visit(browser, served)
    names = "return [...document.querySelectorAll('.backends tbody tr')].map(e => e.dataset.backend)"
    assert browser.run(names) == ["b1", "b2", "b3", "b4", "b5"]
    browser.click("th[data-sort=rate] button")
    assert browser.run(names)[0] == "b5", "it has twice the weight"
    assert browser.run("return document.querySelector('th[data-sort=rate]').ariaSort") == "descending"
    browser.click("th[data-sort=rate] button")
    assert browser.run(names)[-1] == "b5"
    browser.click("th[data-sort=name] button")
    assert browser.run(names) == ["b1", "b2", "b3", "b4", "b5"]


# Weights


def test_a_change_of_weight_is_tried_before_it_is_made(browser: Browser, served: Site) -> None:
    visit(browser, served)
    apply = "document.querySelector('.apply').disabled"
    assert browser.run(f"return {apply}")
    weigh(browser, "b1", "3")
    browser.wait_for("document.querySelector('.flows li')")
    plan = served.world.models["api"].plan({"b1": 3.0})
    assert f"move {plan['moved_share'] * 100:.1f} % of all keys. No others move." in text(browser, ".outcome")
    flows = browser.run("return [...document.querySelectorAll('.flows li span')].map(e => e.innerText)")
    assert flows == [f"{flow['from']} \u2192 {flow['to']}" for flow in plan["flows"]]
    assert served.world.models["api"].backends["b1"].effective_weight == 1.0
    assert not browser.run(f"return {apply}")

    browser.click("button[value=apply]")
    browser.wait_for("document.querySelector('.outcome .bad')")
    assert text(browser, ".outcome") == "this takes the token"
    browser.type("input[name='@token']", TOKEN)
    browser.type("input[name='@reason']", "a bigger machine")
    browser.run("document.querySelector('[name=\"@ttl\"]').value = '10m'")
    browser.click("button[value=apply]")
    browser.wait_for("document.querySelector('.outcome .good')")
    assert served.patches == [{"backends": {"b1": {"weight": 3}}, "ttl": "10m", "reason": "a bigger machine"}]
    browser.wait_for("document.querySelector('tr[data-backend=b1]').innerText.includes('weight 3')")
    browser.wait_for("!document.querySelector('.weights [data-ui-changed]')")
    assert browser.run(f"return {apply}")


@pytest.mark.parametrize("number", ["-1", "1e7", "3e"])
def test_a_weight_that_is_none_is_named(browser: Browser, served: Site, number: str) -> None:
    visit(browser, served)
    weigh(browser, "b1", "3")
    browser.wait_for("document.querySelector('.flows li')")
    weigh(browser, "b1", number)
    browser.wait_for("document.querySelector('.outcome .bad')")
    assert text(browser, ".outcome") == f"Weight of b1: a number from 0 to {HEAVIEST:,}."
    assert browser.run("return document.querySelector('button[value=apply]').matches(':disabled')")
    browser.run("document.querySelector('button[value=undo]').click()")
    weigh(browser, "b1", "2")
    browser.wait_for("document.querySelector('.flows li')")


def test_a_change_can_be_undone_before_it_is_made(browser: Browser, served: Site) -> None:
    visit(browser, served)
    weigh(browser, "b2", "0")
    browser.click('.weights li[data-backend="b3"] input[type=checkbox]')
    browser.wait_for("document.querySelector('.flows li')")
    assert browser.run("return document.querySelectorAll('[data-ui-changed]').length") == 2
    browser.click("button[value=undo]")
    assert not browser.run("return document.querySelector('[data-ui-changed]')")
    assert text(browser, ".outcome") == ""
    assert served.patches == []


def test_a_weight_of_the_file_takes_back_what_was_decided(browser: Browser, served: Site) -> None:
    """Else a decision would stay in force that is none any more."""
    served.do(lambda: served.world.models["api"].set_weight("b1", 3.0))
    visit(browser, served)
    weigh(browser, "b1", "1")
    browser.type("input[name='@token']", TOKEN)
    browser.wait_for("document.querySelector('.flows li')")
    browser.click("button[value=apply]")
    browser.wait_for("document.querySelector('.outcome .good')")
    assert served.patches == [{"backends": {"b1": {"weight": None}}}]
    browser.wait_for("document.querySelector('tr[data-backend=b1]').innerText.includes('weight 1')")


DELETE = "\ue017"  # the key, as WebDriver has it


def test_a_decision_for_the_weight_that_the_file_has_can_be_taken_back(browser: Browser, served: Site) -> None:
    override = {"weight": 1.0, "state": None, "by": "ann", "since": iso(START), "expires_at": None, "reason": ""}
    served.do(lambda: setattr(served.world.models["api"].backends["b1"], "override", override))
    visit(browser, served)
    weigh(browser, "b2", DELETE)
    assert browser.run("return document.querySelectorAll('.weights [data-ui-changed]').length") == 0
    weigh(browser, "b1", DELETE)
    browser.type("input[name='@token']", TOKEN)
    browser.wait_for("!document.querySelector('.apply').disabled")
    browser.click("button[value=apply]")
    browser.wait_for("document.querySelector('.outcome .good')")
    assert served.patches == [{"backends": {"b1": {"weight": None}}}]


def test_what_would_do_harm_must_be_asked_for_twice(browser: Browser, served: Site) -> None:
    visit(browser, served)
    browser.run("document.querySelectorAll('.weights input[type=checkbox]').forEach(e => e.click())")
    browser.wait_for("!document.querySelector('.apply').disabled")
    browser.type("input[name='@token']", TOKEN)
    browser.click("button[value=apply]")
    browser.wait_for("document.querySelector('button[value=apply]').innerText === 'Apply all the same'")
    assert text(browser, ".outcome") == "nobody would be left to serve"
    browser.click("button[value=apply]")
    browser.wait_for("document.querySelector('.outcome .good')")
    assert served.patches[-1]["force"] is True


def test_a_field_that_is_being_typed_in_is_left_alone(browser: Browser, served: Site) -> None:
    visit(browser, served)
    field = '.weights li[data-backend="b1"] input[type=number]'
    browser.run("const e = document.querySelector(arguments[0]); e.focus(); e.value = ''", field)
    served.pass_time(1, 50)
    served.do(lambda: served.world.tell("other", "something"))
    browser.wait_for("document.querySelector('#events').innerText.includes('something')")
    assert browser.run("return document.querySelector(arguments[0]).value", field) == ""


# Many backends


def test_two_hundred_backends(browser: Browser) -> None:
    with Site(World(equal_pool(200))) as served:
        served.pass_time(3, 3000)
        visit(browser, served)
        shown = "return [...document.querySelectorAll('.backends tbody tr')].filter(e => e.offsetHeight).length"
        assert browser.run(shown) == 12
        worst = browser.run("return Number(document.querySelector('.backends tbody tr').dataset.diff)")
        most = (
            "return Math.max(...[...document.querySelectorAll('.backends tbody tr')].map(e => Number(e.dataset.diff)))"
        )
        assert worst == browser.run(most), "the most uneven comes first"
        browser.press("f")
        assert "filter" in focused(browser)
        browser.type(".filter", "b19")
        assert browser.run(shown) == 11
        browser.run("const e = document.querySelector('.filter'); e.value = ''; e.dispatchEvent(new Event('input'))")
        browser.click("button[value=more]")
        assert browser.run(shown) == 200
        browser.type(FIELD, "ann")
        browser.wait_for("document.querySelector('.lit line')")
        assert text(browser, ".key li.none") == "and 192 more backends"
        assert browser.complaints() == []
        assert not (wrong := overflowing(browser)), "\n".join(wrong)


def test_keys_are_told_where_they_do_something(browser: Browser, served: Site) -> None:
    visit(browser, served)
    assert text(browser, "footer").startswith("/ look up a key Esc let go"), "five backends need no filter"
    with Site(World(equal_pool(30))) as large:
        visit(browser, large)
        assert text(browser, "footer").startswith("/ look up a key f filter backends Esc let go")
        browser.press("f")
        assert focused(browser) == "needs-js filter"


def test_of_many_backends_those_that_are_out_are_always_shown(browser: Browser) -> None:
    with Site(World(equal_pool(200))) as served:
        served.pass_time(3, 3000)
        visit(browser, served)
        browser.click("th[data-sort=name] button")
        shown = (
            "[...document.querySelectorAll('.backends tbody tr')]"
            ".filter(e => e.offsetHeight).map(e => e.dataset.backend).join()"
        )
        first = [f"b{number}" for number in range(1, 13)]
        assert browser.run(f"return {shown}").split(",") == first
        served.do(lambda: served.world.set_state("api", "b150", "down"))
        browser.wait_for(f"{shown} == arguments[0]", ",".join([*first[:11], "b150"]))


# Without scripts


def test_without_scripts_it_is_a_page_to_read(browser: Browser, served: Site, tmp_path: Path) -> None:
    browser.look_like(*PHONE, script=False)
    browser.open(f"{served.url}?pool=api&key=ann")
    tree = browser.devtools("Accessibility.getFullAXTree", {})["nodes"]
    names = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]}
    browser.look_like(*PHONE)
    roles = {role for role, _ in names}
    assert ("heading", "All 5 backends serve.") in names
    assert {"table", "rowheader", "columnheader", "cell", "main", "searchbox"} <= roles
    assert any(name.startswith("Pool api") for role, name in names if role == "region")
    assert not any("Apply" in name for role, name in names if role == "button"), "what needs scripts is not offered"
