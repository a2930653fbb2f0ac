"""The page of a made-up world, served to a real browser, and what a person does with it."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from aiohttp import web

from lbproxy.control.admin.page import add_page, site
from lbproxy.control.admin.page.watch import Watch
from tests.browser import Browser
from tests.page_world import World

Made = TypeVar("Made")
TOKEN = "secret"
DESKTOP, PHONE = (1440, 900), (390, 844)
FIELD = ".ask input[name=key]"
LIVE = "document.querySelector('.news.live')"


class Site:
    """A world behind a page, served from a thread of its own, with the writes that the page makes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.patches: list[dict[str, Any]] = []
        self.is_broken = False
        self._ready: Future[tuple[asyncio.AbstractEventLoop, int]] = Future()
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Site:
        self._thread.start()
        self._loop, self.port = self._ready.result(10)
        self.url = f"http://127.0.0.1:{self.port}/"
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        app = web.Application(middlewares=[self._gate])
        add_page(app, self.world, self.world.clock, self.world.wall)
        app.router.add_post("/v1/plan", self._plan)
        app.router.add_patch("/v1/pools/{pool}/backends", self._patch)
        self.watch: Watch = app[site.WATCH]
        runner = web.AppRunner(app, shutdown_timeout=0.5)
        await runner.setup()
        place = web.TCPSite(runner, "127.0.0.1", 0)
        await place.start()
        self._ready.set_result((asyncio.get_running_loop(), runner.addresses[0][1]))
        await self._stop.wait()
        await runner.cleanup()

    @web.middleware
    async def _gate(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        if self.is_broken and request.path == "/page/live":
            raise web.HTTPServiceUnavailable
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _plan(self, request: web.Request) -> web.Response:
        asked = await request.json()
        model = self.world.models[asked["pool"]]
        weights = {
            name: model.backends[name].weight if wanted["weight"] is None else wanted["weight"]
            for name, wanted in asked["backends"].items()
            if "weight" in wanted
        }
        return web.json_response(model.plan(weights))

    async def _patch(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            problem = {"title": "Unauthorized", "status": 401, "detail": "this takes the token"}
            return web.Response(text=json.dumps(problem), status=401, content_type="application/problem+json")
        asked = await request.json()
        self.patches.append(asked)
        if all(wanted.get("state") == "drain" for wanted in asked["backends"].values()) and not asked.get("force"):
            return web.json_response({"detail": "nobody would be left to serve"}, status=409)
        model = self.world.models[request.match_info["pool"]]
        for name, wanted in asked["backends"].items():
            if "weight" in wanted:
                model.set_weight(name, model.backends[name].weight if wanted["weight"] is None else wanted["weight"])
        self.world.tell("override", "weights have changed", pool=model.name)
        return web.json_response({"name": model.name})

    def do(self, work: Callable[[], Made]) -> Made:
        """Do something in the server's thread."""

        async def doing() -> Made:
            return work()

        return asyncio.run_coroutine_threadsafe(doing(), self._loop).result(10)

    def pass_time(self, seconds: int, requests: int = 0) -> None:
        for _ in range(seconds):
            self.do(lambda: self.world.pass_time(1, requests))
            self.do(self.watch.look)


def visit(browser: Browser, served: Site, size: tuple[int, int] = DESKTOP, dark: bool = False) -> None:
    browser.complaints()
    browser.look_like(*size, dark=dark)
    browser.open(served.url)
    browser.wait_for(LIVE)


def text(browser: Browser, selector: str) -> str:
    found: str = browser.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
    return re.sub(r"[\s\u202f]+", " ", found).strip()


def focused(browser: Browser) -> str:
    found: str = browser.run("const e = document.activeElement; return e.name || e.id || e.className || e.tagName")
    return found


def weigh(browser: Browser, backend: str, weight: str) -> None:
    field = f'.weights li[data-backend="{backend}"] input[type=number]'
    browser.run("const e = document.querySelector(arguments[0]); e.focus(); e.select()", field)
    browser.type(field, weight)


# How it looks

# Only there for who hears the page.
UNSEEN = """
        const isClipped = (each) => getComputedStyle(each).clipPath === 'inset(50%)';
        const isUnseen = (each) => each && (isClipped(each) || isUnseen(each.parentElement));
"""


def overflowing(browser: Browser) -> list[str]:
    """Where something is cut off, or sticks out of the screen or of what holds it."""
    found: list[str] = browser.run(
        UNSEEN
        + """
        const wrong = [];
        if (document.documentElement.scrollWidth > innerWidth) wrong.push('the page scrolls sideways');
        for (const each of document.querySelectorAll('body *')) {
            if (!each.offsetParent || isUnseen(each) || each.closest('svg, .vh, .skip, .scroll')) continue;
            const style = getComputedStyle(each);
            const name = () => `${each.tagName}.${each.className}#${each.id} ${each.innerText?.slice(0, 30)}`;
            const isTooWide = each.clientWidth && each.scrollWidth > each.clientWidth + 1;
            const isCut = style.overflow === 'hidden' && style.textOverflow !== 'ellipsis';
            const isVisible = style.overflowX === 'visible' && style.display !== 'inline';
            if (isTooWide && (isCut || isVisible)) wrong.push(`too wide: ${name()}`);
            const box = each.getBoundingClientRect();
            if (box.width && (box.right > innerWidth + 1 || box.left < -1)) wrong.push(`off the screen: ${name()}`);
        }
        return wrong;
        """
    )
    return found


def overlapping(browser: Browser) -> list[str]:
    """Pieces of text that lie on each other."""
    found: list[str] = browser.run(
        UNSEEN
        + """
        const boxes = [];
        const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walk.nextNode()) {
            const node = walk.currentNode;
            if (!node.data.trim() || !node.parentElement.offsetParent) continue;
            if (isUnseen(node.parentElement)) continue;
            if (node.parentElement.closest('.vh, .skip, .weights, .events, option')) continue;
            const range = document.createRange();
            range.selectNodeContents(node);
            for (const box of range.getClientRects()) boxes.push([box, node.data.trim()]);
        }
        const wrong = [];
        boxes.sort((a, b) => a[0].top - b[0].top);
        boxes.forEach(([a, one], at) => {
            for (let next = at + 1; next < boxes.length && boxes[next][0].top < a.bottom - 4; next += 1) {
                const [b, other] = boxes[next];
                const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                if (width > 1 && height > 4) wrong.push(`${one} / ${other}`);
            }
        });
        return wrong;
        """
    )
    return found


def faint(browser: Browser) -> list[str]:
    """Text whose contrast with what is behind it is below 4.5 (3 for large text): WCAG 2.2, 1.4.3."""
    found: list[str] = browser.run(
        """
        const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
        const parts = (color, under) => {
            canvas.fillStyle = `rgb(${under.join(',')})`;
            canvas.fillRect(0, 0, 1, 1);
            canvas.fillStyle = color;
            canvas.fillRect(0, 0, 1, 1);
            return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
        };
        const behind = (each) => {
            if (!each) return [255, 255, 255];
            return parts(getComputedStyle(each).backgroundColor, behind(each.parentElement));
        };
        const light = (color) => {
            const [r, g, b] = color.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const wrong = new Set();
        const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walk.nextNode()) {
            const each = walk.currentNode.parentElement;
            if (!walk.currentNode.data.trim() || !each.offsetParent) continue;
            if (each.closest('.vh, .skip, :disabled, option, svg')) continue;
            const style = getComputedStyle(each);
            const under = behind(each);
            const pair = [light(parts(style.color, under)), light(under)].sort((a, b) => b - a);
            const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
            const size = parseFloat(style.fontSize);
            const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 600);
            if (contrast < (isLarge ? 3 : 4.5)) {
                const words = walk.currentNode.data.trim().slice(0, 30);
                wrong.add(`${contrast.toFixed(2)} ${each.tagName}.${each.className} ${words}`);
            }
        }
        return [...wrong];
        """
    )
    return found
