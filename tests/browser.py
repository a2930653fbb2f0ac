"""A headless Chromium for tests, driven through chromedriver by the plain WebDriver protocol."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tools import require_tool

PATIENCE_S = 20.0
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One browser with a profile of its own. `folder` is where it may write."""

    def __init__(self, folder: Path) -> None:
        driver, chromium = require_tool("chromedriver"), require_tool("chromium")
        # It speaks to its own chromedriver and to the page, both here, and to nobody else.
        self._process = subprocess.Popen(
            [driver, "--port=0", "--allowed-ips=127.0.0.1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._base = f"http://127.0.0.1:{self._port()}"
        options = {"binary": chromium, "args": [*OPTIONS, f"--user-data-dir={folder / 'profile'}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        try:
            session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        except BaseException:
            self._end()
            raise
        self._base += f"/session/{session['sessionId']}"

    def _port(self) -> int:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = re.search(r"started successfully on port (\d+)", line)
            if found:
                return int(found[1])
        raise RuntimeError("chromedriver does not start")

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def close(self) -> None:
        self._ask("DELETE", "")
        self._end()

    # What a person does

    def look_like(self, width: int, height: int, dark: bool = False, script: bool = True, motion: bool = False) -> None:
        """A screen of that size; `script` whether it runs scripts. Takes effect with the next `open`."""
        mobile = width < 600
        metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if mobile else 1, "mobile": mobile}
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "no-preference" if motion else "reduce"},
        ]
        self.devtools("Emulation.setEmulatedMedia", {"features": features})
        self.devtools("Emulation.setScriptExecutionDisabled", {"value": not script})

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """What the body of a function comes to in the page."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": arguments})

    def wait_for(self, script: str, *arguments: object, bound_s: float = PATIENCE_S) -> Any:
        """What an expression comes to, once that is true."""
        return until_true(lambda: self.run(f"return {script}", *arguments), bound_s, script)

    def find(self, selector: str) -> str:
        found: str = self._ask("POST", "/element", {"using": "css selector", "value": selector})[_ELEMENT]
        return found

    def click(self, selector: str) -> None:
        self._ask("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self._ask("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, wherever the focus is."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def complaints(self) -> list[str]:
        """What the browser's console has said since the last call: errors of scripts, refusals of the policy."""
        entries: list[dict[str, Any]] = self._ask("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]


def until_true(ask: Callable[[], Any], bound_s: float, what: str) -> Any:
    end = time.monotonic() + bound_s
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < end, f"it never came true: {what}"
        time.sleep(0.02)
