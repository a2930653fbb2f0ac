"""How the page looks, measured in a real browser: nothing cut off, nothing on top of something else, nothing faint."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import Browser
from tests.page_site import DESKTOP, FIELD, PHONE, Site, faint, overflowing, overlapping, text, visit, weigh
from tests.page_world import PoolModel, World, equal_pool


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


LONG = "checkout-eu-central-1a-{}.internal.example.com:8443"


@pytest.mark.parametrize(
    "size", [DESKTOP, (1366, 768), (1280, 800), (1160, 900), (1024, 768), (768, 1024), PHONE, (320, 640)]
)
def test_nothing_is_cut_off_or_faint_or_lies_on_something_else(
    browser: Browser, served: Site, size: tuple[int, int]
) -> None:
    def trouble() -> None:
        model = served.world.models["api"]
        model.hot, model.failing, model.saved = ("user-hot", 0.4, 3), "b1", 700
        served.world.set_state("api", "b3", "down")
        served.world.set_state("api", "b4", "draining")
        model.backends["b4"].override = {"reason": "disk swap", "by": "ops", "state": "drain", "expires_at": None}
        served.world.tell("hot_key", "a key of api is hot, and is spread over 3", "warning", "api")

    served.do(trouble)
    served.pass_time(12, 300)
    visit(browser, served, size)
    browser.type(FIELD, "user-hot")
    browser.wait_for("document.querySelector('.key q')")
    browser.click("tr[data-backend=b2] .pick")
    weigh(browser, "b1", "2")
    browser.wait_for("document.querySelector('.flows li')")
    assert not (wrong := overflowing(browser)), "\n".join(wrong)
    assert not (wrong := overlapping(browser)), "\n".join(wrong)
    assert not (wrong := faint(browser)), "\n".join(wrong)
    browser.look_like(*size, dark=True)
    assert not (wrong := faint(browser)), "\n".join(wrong)
    assert browser.complaints() == []


@pytest.mark.parametrize("number", [1, 200])
def test_one_backend_and_two_hundred_look_as_well(browser: Browser, number: int) -> None:
    with Site(World(equal_pool(number))) as served:
        served.pass_time(12, 500)
        for size in (DESKTOP, PHONE):
            visit(browser, served, size, dark=size == PHONE)
            browser.type(FIELD, "ann")
            browser.wait_for("document.querySelector('.key q')")
            assert not (wrong := overflowing(browser)), "\n".join(wrong)
            assert not (wrong := overlapping(browser)), "\n".join(wrong)
            assert not (wrong := faint(browser)), "\n".join(wrong)


@pytest.mark.parametrize("size", [DESKTOP, (1160, 900), (512, 844), PHONE, (360, 780), (320, 640)])
def test_no_table_is_cut_off_where_it_could_be_scrolled(browser: Browser, served: Site, size: tuple[int, int]) -> None:
    served.world.requests_before = 98_765_432_109
    served.world.worker_states = ["ready", "draining", "starting", "down"]
    visit(browser, served, size)
    cut = "[...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth).length"
    assert browser.run(f"return {cut}") == 0
    assert "98,765,432,109" in text(browser, ".workers")
    assert not (wrong := overflowing(browser)), "\n".join(wrong)
    assert not (wrong := overlapping(browser)), "\n".join(wrong)


@pytest.mark.parametrize("size", [DESKTOP, (800, 900), PHONE, (360, 780)])
def test_what_belongs_together_stands_in_one_line(browser: Browser, served: Site, size: tuple[int, int]) -> None:
    visit(browser, served, size)
    heights = "[...document.querySelectorAll('footer .needs-js > span')].map((each) => each.getClientRects().length)"
    assert browser.run(f"return {heights}") == [1, 0, 1], "a key and what it does, but for one that does nothing here"
    tops = "[...document.querySelectorAll('.apply button')].map((each) => each.getBoundingClientRect().top)"
    assert len(set(browser.run(f"return {tops}"))) == 1, "to undo and to apply"


def test_cards_can_be_sorted_too(browser: Browser, served: Site) -> None:
    visit(browser, served, PHONE)
    browser.click("th[data-sort=rate] button")
    assert browser.run("return document.querySelector('.backends tbody tr').dataset.backend") == "b5"


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_long_names_fit(browser: Browser, size: tuple[int, int]) -> None:
    pool = PoolModel("a-very-long-pool-name-for-the-european-checkout-service", {LONG.format(at): 1 for at in range(8)})
    with Site(World(pool)) as served:
        served.pass_time(5, 300)
        served.do(lambda: served.world.set_state(pool.name, LONG.format(2), "down"))
        served.pass_time(2, 300)
        visit(browser, served, size)
        browser.type(FIELD, "ann")
        browser.wait_for("document.querySelector('.key q')")
        assert not (wrong := overflowing(browser)), "\n".join(wrong)
        assert not (wrong := overlapping(browser)), "\n".join(wrong)
