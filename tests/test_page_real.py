"""The page of a real proxy under traffic: headers, what it says, an event, and a weight applied by hand."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.browser import Browser
from tests.page_html import Reading
from tests.page_site import FIELD, LIVE, text, weigh
from tests.running import Backends, Proxy, Traffic, backend_list, until_true

TOKEN = "correct-horse"


class Real:
    """A proxy with four backends and its admin port."""

    def __init__(self, proxy: Proxy, backends: Backends) -> None:
        self.proxy = proxy
        self.backends = backends
        self.url = f"http://127.0.0.1:{proxy.admin_port}/"


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Real]:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    async with Backends("b1", "b2", "b3", "b4") as backends:
        pools = {
            "api": {
                "backends": backend_list(backends.ports),
                "health": {"path": "/healthz", "interval": "200ms", "timeout": "2s", "rise": 1, "fall": 2},
            }
        }
        admin = {"listen": "127.0.0.1:0", "token_file": str(token_file)}
        proxy = Proxy(tmp_path, backends.ports, pools=pools, admin=admin)
        await asyncio.to_thread(proxy.__enter__)
        try:
            yield Real(proxy, backends)
        finally:
            await asyncio.to_thread(proxy.end)


async def test_it_is_served_under_the_rules_of_the_admin_api(real: Real) -> None:
    async with aiohttp.ClientSession() as client:
        async with client.get(real.url) as answer:
            reading = Reading(await answer.text())
            headers = answer.headers
        assert reading.errors == []
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "'unsafe" not in headers["Content-Security-Policy"]
        assert headers.getall("X-Content-Type-Options") == ["nosniff"]
        assert headers.getall("Cache-Control") == ["no-store"]
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers.getall("Server") == ["lbproxy"]
        for path in ("", "page/live", "page/page.js"):
            async with client.get(real.url + path, headers={"Host": "evil.example"}) as answer:
                assert answer.status == 421, "no foreign name leads here"
        async with client.get(real.url + "page/key?pool=nothing&key=a") as answer:
            assert (answer.status, answer.content_type) == (404, "application/problem+json")
        async with client.get(real.url + "page/page.css") as answer:
            assert answer.headers.getall("Cache-Control") == ["no-cache"]


async def test_it_says_what_happens(real: Real) -> None:
    traffic = Traffic(real.proxy.port, 4)
    await traffic.until_answered(300)
    reading = await asyncio.to_thread(read, real.url)
    assert "All 4 backends serve." in reading.text
    assert [row[0].split()[0] for row in reading.tables[0][1:]] == ["b1", "b2", "b3", "b4"]
    served = sum(int(found.replace(",", "")) for found in re.findall(r"([\d,]+) answers? in the last", reading.text))
    assert served > 0
    for user in range(4):
        key = f"user-{user}"
        answer = await asyncio.to_thread(read, f"{real.url}?pool=api&key={key}")
        (home,) = traffic.homes[key]
        assert f"{key} lives on {home}." in answer.text
    await traffic.stop()


async def test_an_event_of_the_proxy_shows_within_a_second(real: Real) -> None:
    async with aiohttp.ClientSession() as client, client.get(real.url + "page/live") as feed:
        assert feed.status == 200
        took_s = []
        for name in ("b2", "b3", "b4"):  # on a busy machine one may be late
            took_s.append(await _until_shown(real, feed, name))
            if took_s[-1] < 1.0:
                break
        assert min(took_s) < 1.0


async def _until_shown(real: Real, feed: aiohttp.ClientResponse, name: str) -> float:
    """How long it takes until the page knows of a backend that has gone, from when the proxy knows."""
    await real.backends.stop(name)
    waiting = asyncio.create_task(_until_said(feed, f"{name} is down"))
    down = name, "down"
    await until_true(lambda: down in [(each["backend"], each["state"]) for each in real.proxy.named("backend state")])
    known = time.monotonic()
    async with asyncio.timeout(10):
        await waiting
    return time.monotonic() - known


async def _until_said(feed: aiohttp.ClientResponse, words: str) -> None:
    async for line in feed.content:
        if words in line.decode():
            return
    raise AssertionError("the feed has ended")


async def test_a_weight_is_tried_and_applied_by_hand(real: Real, tmp_path: Path) -> None:
    traffic = Traffic(real.proxy.port, 2)
    await asyncio.to_thread(_apply_by_hand, real, tmp_path)
    await traffic.stop()
    assert not traffic.failed
    assert traffic.statuses == {200}


def _apply_by_hand(real: Real, folder: Path) -> None:
    browser = Browser(folder)
    try:
        browser.look_like(1440, 900)
        browser.open(real.url)
        browser.wait_for(LIVE)
        before = real.proxy.document("/v1/pools/api/ring")["fingerprint"]
        browser.type(FIELD, "user-1")
        browser.wait_for("document.querySelector('.key q')?.innerText === 'user-1'")
        explained = real.proxy.document("/v1/pools/api/explain?key=user-1")
        assert text(browser, ".key li:first-child b") == explained["preference"][0]["backend"]

        weigh(browser, "b1", "3")
        browser.wait_for("document.querySelector('.outcome').innerText")
        promised = re.search(r"move ([\d.]+) % of all keys", text(browser, ".outcome"))
        assert promised is not None, text(browser, ".outcome")
        assert real.proxy.document("/v1/pools/api/ring")["fingerprint"] == before, "trying changes nothing"

        browser.type("input[name='@token']", "wrong")
        browser.click("button[value=apply]")
        browser.wait_for("document.querySelector('.outcome .bad')")
        assert real.proxy.document("/v1/pools/api/ring")["fingerprint"] == before
        browser.run("document.querySelector('[name=\"@token\"]').value = ''")
        browser.type("input[name='@token']", TOKEN)
        browser.type("input[name='@reason']", "a bigger machine")
        browser.click("button[value=apply]")
        browser.wait_for("document.querySelector('.outcome .good')")
        browser.wait_for("document.querySelector('tr[data-backend=b1]').innerText.includes('weight 3')")
        browser.wait_for("document.querySelector('tr[data-backend=b1]').innerText.includes('a bigger machine')")
        pool: dict[str, Any] = real.proxy.document("/v1/pools/api")
        assert pool["backends"][0]["effective_weight"] == 3
        assert pool["ring"]["last_change"]["moved_share"] * 100 == pytest.approx(float(promised[1]), abs=0.06)
        assert not [words for words in browser.complaints() if "401" not in words]
    finally:
        browser.close()


def read(url: str) -> Reading:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return Reading(answer.read().decode())
