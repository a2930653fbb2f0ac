"""The page over HTTP: headers, validity, what a reader without scripts finds, files, and the live feed."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from lbproxy.control.admin.page import add_page, site
from lbproxy.control.admin.page.watch import HASTE_S, Watch
from tests.page_html import Reading
from tests.page_world import PoolModel, World, equal_pool

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}


class Served:
    """The page of a world on a port of its own, and somebody who asks for it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.app = web.Application()
        add_page(self.app, world, world.clock, world.wall)
        self._runner = web.AppRunner(self.app, shutdown_timeout=20.0)

    async def __aenter__(self) -> Served:
        await self._runner.setup()
        place = web.TCPSite(self._runner, "127.0.0.1", 0)
        await place.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self._runner.cleanup()

    @property
    def watch(self) -> Watch:
        return self.app[site.WATCH]

    def pass_time(self, seconds: int, requests: int = 0) -> None:
        for _ in range(seconds):
            self.world.pass_time(1, requests)
            self.watch.look()

    async def get(self, path: str, **headers: str) -> tuple[aiohttp.ClientResponse, str]:
        async with self.client.get(self.url + path, headers=headers) as answer:
            return answer, await answer.text()

    async def read(self, path: str = "/") -> Reading:
        answer, text = await self.get(path)
        assert answer.status == 200
        return Reading(text)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with Served(World(equal_pool(5, b5=2.0))) as made:
        yield made


# Headers and files


@pytest.mark.parametrize(
    "path", ["/", "/page/page.css", "/page/page.js", "/page/good.svg", "/page/key?pool=api&key=ann"]
)
async def test_headers_forbid_what_is_not_needed(served: Served, path: str) -> None:
    answer, _ = await served.get(path)
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
    assert policy == POLICY
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


async def test_the_page_is_never_kept_and_its_files_are(served: Served) -> None:
    answer, text = await served.get("/")
    assert answer.headers["Cache-Control"] == "no-store"
    address = re.search(r'href="(page/page\.css\?\w+)"', text)
    assert address is not None
    answer, _ = await served.get(f"/{address[1]}")
    assert "immutable" in answer.headers["Cache-Control"]
    answer, _ = await served.get("/page/page.css")
    assert answer.headers["Cache-Control"] == "no-cache"
    answer, text = await served.get("/page/page.css", **{"If-None-Match": answer.headers["ETag"]})
    assert (answer.status, text) == (304, "")


@pytest.mark.parametrize("name", ["nothing.js", "..%2fsite.py", "%2e%2e/site.py", "page.html"])
async def test_only_the_files_of_the_page_are_served(served: Served, name: str) -> None:
    answer, _ = await served.get(f"/page/{name}")
    assert answer.status == 404


async def test_types_of_files(served: Served) -> None:
    types = {name: (await served.get(f"/page/{name}"))[0].content_type for name in ("page.css", "page.js", "bad.svg")}
    assert types == {"page.css": "text/css", "page.js": "text/javascript", "bad.svg": "image/svg+xml"}


async def test_it_is_small_and_asks_nobody_else(served: Served) -> None:
    served.pass_time(30, 200)
    _, text = await served.get("/")
    assets = site.load_assets()
    assert len(text.encode()) + sum(len(asset.content) for asset in assets.values()) < 100_000
    packed = len(gzip.compress(text.encode())) + sum(len(asset.packed) for asset in assets.values())
    assert packed < 40_000, "what goes over the wire"
    assert sum(len(asset.content) for asset in assets.values()) < 60_000
    sources = [asset.content.decode() for asset in assets.values() if asset.type != "image/svg+xml"]
    for source in [*sources, text]:
        assert not re.search(r"(https?:)?//(?!www\.w3\.org/2000/svg)[a-z0-9.-]+\.[a-z]{2,}", source)
        assert "@import" not in source
    assert not any(re.match(r"\w+:|//|/", address) for address in Reading(text).addresses), "it works below any path"


# Without scripts


@pytest.mark.parametrize("number", [1, 2, 5, 11, 200])
async def test_it_is_valid(number: int) -> None:
    async with Served(World(equal_pool(number))) as served:
        served.pass_time(12, 300)
        served.world.set_state("api", "b1", "down")
        served.pass_time(3, 300)
        reading = await served.read("/?pool=api&key=ann")
    assert reading.errors == []
    backends = reading.tables[0]
    assert backends[0][0] == "Backend"
    assert len(backends) == number + 1
    assert all(len(row) == len(backends[0]) for row in backends)


async def test_everything_stands_in_it_as_text(served: Served) -> None:
    served.pass_time(30, 300)
    served.world.tell("reload", "configuration 4 is in force")
    served.pass_time(1, 300)
    reading = await served.read()
    text = re.sub(r"[\s\u202f]+", " ", reading.text)
    assert reading.headings[0] == "All 5 backends serve."
    assert "Load is spread as configured." in text
    assert "sticky by header X-User-ID" in text
    assert "configuration 4 is in force" in text
    backends, workers = reading.tables
    assert len(workers) == 3
    row = [re.sub(r"[\s\u202f]+", " ", cell).strip() for cell in backends[5]]
    assert re.fullmatch(r"b5 up weight 2 \u00b7 zone b", row[0])
    assert re.fullmatch(r"3\d\.\d % of 33\.3 %", row[1])
    whole = re.fullmatch(r"\d\.\d\d\u00d7 ([+\u2212]?\d+) %", row[2])
    parts = re.fullmatch(r"ring ([+\u2212]?\d+) keys ([+\u2212]?\d+) spill ([+\u2212]?\d+)", row[3])
    assert whole is not None
    assert parts is not None
    assert sum(map(number, parts.groups())) == number(whole[1]), "the causes add up"
    assert row[4] == "out 0 in 0"
    assert re.fullmatch(r"\d+ of 20", row[5])
    assert re.fullmatch(r"\d+/s no errors", row[6])
    assert re.fullmatch(r"\d\.\d ms \d+ ms", row[7])


async def test_what_retries_saved_is_one_figure_where_there_were_any(served: Served) -> None:
    async def said() -> str:
        text = re.sub(r"[\s\u202f]+", " ", (await served.read()).text)
        return text.partition("What the numbers say")[0]

    served.pass_time(30, 300)
    assert "Saved by retries" not in await said()
    served.world.models["api"].saved = 90
    served.pass_time(1, 300)
    assert re.search(r"Errors0 %Saved by retries1\.0 %Latency", await said())
    served.pass_time(40, 300)
    assert "Saved by retries" not in await said(), "that is over"


def number(text: str) -> int:
    return int(text.replace("\u2212", "-"))


async def test_a_key_is_answered_without_scripts(served: Served) -> None:
    served.pass_time(2, 10)
    model = served.world.models["api"]
    for key in ("ann", "eve", "\u00fc\u4e2d", "<b>&\"'"):
        async with served.client.get(served.url, params={"pool": "api", "key": key}) as answer:
            reading = Reading(await answer.text())
        assert reading.errors == []
        assert f"{key} lives on {model.preference(key)[0].name}." in reading.text


async def test_a_key_whose_owner_is_down(served: Served) -> None:
    owner, second, *_ = served.world.models["api"].preference("ann")
    served.world.set_state("api", owner.name, "down")
    served.pass_time(1)
    _, text = await served.get("/page/key?pool=api&key=ann")
    reading = Reading(text)
    assert all(error.startswith("nothing has the id i-") for error in reading.errors), "but for the sheet of signs"
    assert f"ann is served by {second.name}: {owner.name} owns the key and may not be asked." in reading.text
    assert f'data-owner="{owner.name}" data-serving="{second.name}"' in text


async def test_odd_questions_about_keys(served: Served) -> None:
    served.pass_time(1)
    assert (await served.get("/page/key?pool=nothing&key=ann"))[0].status == 404
    assert "Type a key" in (await served.get("/page/key?pool=api&key="))[1]
    assert "longer than" in (await served.get("/page/key?pool=api&key=" + "x" * 5000))[1]
    assert (await served.read("/?pool=nothing&key=ann")).errors == []


async def test_names_cannot_break_out() -> None:
    evil = "<script>alert(1)</script>&\"'"
    pool = PoolModel(f"p{evil}", {f"b{evil}": 1.0, "b2": 1.0})
    world = World(pool)
    async with Served(world) as served:
        served.pass_time(5, 100)
        world.set_state(pool.name, f"b{evil}", "draining")
        pool.backends[f"b{evil}"].override = {"reason": evil, "by": evil, "state": "drain", "expires_at": None}
        world.tell("other", evil, pool=pool.name)
        served.pass_time(1)
        async with served.client.get(served.url, params={"pool": pool.name, "key": evil}) as answer:
            text = await answer.text()
    reading = Reading(text)
    assert reading.errors == []
    assert text.count("<script") == 1, "the page's own"
    assert evil in reading.text


async def test_several_pools_have_one_verdict() -> None:
    world = World(equal_pool(3, "web"), equal_pool(2, "api"), equal_pool(1, "static"))
    async with Served(world) as served:
        served.pass_time(30, 300)
        reading = await served.read()
        assert reading.errors == []
        assert reading.headings[0] == "All 3 pools are well."
        world.set_state("api", "b1", "down")
        served.pass_time(3, 300)
        reading = await served.read()
        assert reading.headings[0] == "api: b1 is down."
        assert "The other 2 pools are well." in reading.text
        assert [heading for heading in reading.headings if heading.startswith("Pool ")] == [
            "Pool web",
            "Pool api",
            "Pool static",
        ]


async def test_where_nothing_can_be_changed_the_page_says_so(served: Served) -> None:
    assert "Apply" in (await served.read()).text
    served.world.writes = "off"
    served.pass_time(1)
    text = (await served.read()).text
    assert "Nothing can be applied from here" in text
    assert "Token" not in text


# The live feed


class Viewer:
    """Reads the feed as a browser does."""

    def __init__(self, served: Served, since: str = "", **headers: str) -> None:
        self._asked = served.client.get(f"{served.url}/page/live?since={since}", headers=headers)

    async def __aenter__(self) -> Viewer:
        self.answer = await self._asked.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._asked.__aexit__(*error)

    async def message(self) -> tuple[str, dict[str, str]]:
        """The id and the pieces of the next message."""
        last = ""
        async with asyncio.timeout(5):
            while True:
                line = (await self.answer.content.readline()).decode()
                assert line, "the feed has ended"
                if line.startswith("id: "):
                    last = line[4:].strip()
                elif line.startswith("data: "):
                    return last, json.loads(line[6:])["pieces"]


def place(text: str) -> str:
    found = re.search(r'data-boot="(\w+)" data-number="(\d+)"', text)
    assert found is not None
    return f"{found[1]}.{found[2]}"


async def test_the_feed_goes_on_from_the_page(served: Served) -> None:
    served.pass_time(3, 100)
    _, text = await served.get("/")
    async with Viewer(served, place(text)) as viewer:
        assert viewer.answer.content_type == "text/event-stream"
        served.world.pass_time(1, 100)
        last, pieces = await viewer.message()
        while "p0-b0" not in pieces:
            last, pieces = await viewer.message()
        assert "main" not in pieces
        assert pieces["p0-b0"].startswith('<tr id="p0-b0"')
        assert last.startswith(served.watch.boot)
    for name, html in pieces.items():
        assert f'id="{name}"' in html


async def test_an_event_comes_at_once(served: Served) -> None:
    served.pass_time(3, 100)
    _, text = await served.get("/")
    async with Viewer(served, place(text)) as viewer:
        await viewer.message()
        await asyncio.sleep(HASTE_S * 2)
        began = asyncio.get_running_loop().time()
        served.world.set_state("api", "b2", "down")
        _, pieces = await viewer.message()
        took = asyncio.get_running_loop().time() - began
    assert "b2 is down" in pieces["events"]
    assert "b2 is down" in pieces["verdict"]
    assert "s-down" in pieces["p0-b1"]
    assert took < 0.9


async def test_whoever_comes_from_another_life_gets_everything(served: Served) -> None:
    served.pass_time(1)
    for since in ("", "00000000.3", f"{served.watch.boot}.999999", f"{served.watch.boot}.-1", "nonsense"):
        async with Viewer(served, since) as viewer:
            _, pieces = await viewer.message()
        assert list(pieces) == ["main"]
        assert Reading(pieces["main"]).headings[0] == "All 5 backends serve."


async def test_a_browser_that_comes_back_says_where_it_was(served: Served) -> None:
    served.pass_time(1)
    _, text = await served.get("/")
    async with Viewer(served, "00000000.1", **{"Last-Event-ID": place(text)}) as viewer:
        _, pieces = await viewer.message()
    assert "main" not in pieces


async def test_a_new_backend_makes_everything_new(served: Served) -> None:
    served.pass_time(2, 50)
    _, text = await served.get("/")
    async with Viewer(served, place(text)) as viewer:
        await viewer.message()
        served.world.models["api"] = equal_pool(6)
        served.world.tell("reload", "configuration 5 is in force")
        _, pieces = await viewer.message()
    assert list(pieces) == ["main"]
    assert pieces["main"].count('<tr id="p0-b') == 6


async def test_all_viewers_are_counted_and_only_so_many_are_served(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "MOST_VIEWERS", 2)
    served.pass_time(1)
    async with Viewer(served) as one, Viewer(served) as two:
        await one.message()
        await two.message()
        assert served.watch.viewers == 2
        answer, _ = await served.get("/page/live")
        assert answer.status == 503
    async with asyncio.timeout(5):
        while served.watch.viewers:
            served.world.tell("other", "something")
            await asyncio.sleep(0.01)


async def test_the_feed_ends_with_the_server() -> None:
    async with Served(World(equal_pool(2))) as served:
        served.pass_time(1)
        viewer = Viewer(served)
        async with viewer:
            await viewer.message()
            began = asyncio.get_running_loop().time()
            await served._runner.cleanup()
            assert await viewer.answer.content.read() is not None
            assert asyncio.get_running_loop().time() - began < 10.0  # half of what the server would wait for it


async def test_a_look_that_fails_is_told_and_not_the_last(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    served.pass_time(1)
    async with Viewer(served) as viewer:
        await viewer.message()
        with monkeypatch.context() as broken:
            broken.setattr(World, "pools", lambda _: 1 / 0)
            served.world.tell("other", "something")
            async with asyncio.timeout(5):
                while not told:  # noqa: ASYNC110  # the loop tells it by itself
                    await asyncio.sleep(0.01)
        served.world.tell("other", "something else")
        _, pieces = await viewer.message()
        while "something else" not in pieces.get("events", ""):
            _, pieces = await viewer.message()
    assert isinstance(told[0]["exception"], ZeroDivisionError)


async def test_nobody_watching_means_little_work(served: Served) -> None:
    served.pass_time(3, 10)
    number = served.watch.board.number
    served.pass_time(5, 10)
    assert served.watch.board.number == number, "pieces are made for viewers only"


async def test_two_hundred_backends_cost_little() -> None:
    world = World(equal_pool(200))
    async with Served(world) as served:
        served.pass_time(2, 2000)
        served.watch.enter()
        loop = asyncio.get_running_loop()
        served.watch.look()
        costs = []
        for _ in range(5):
            world.pass_time(1, 1000)
            document = world.pools()
            world.pools = lambda document=document: document  # type: ignore[method-assign, misc]
            began = loop.time()
            served.watch.look()
            costs.append(loop.time() - began)
            del world.pools
        served.watch.leave()
    assert min(costs) < 0.1
