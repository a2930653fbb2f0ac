"""The metrics page of a running proxy: it is what the reference says, and says nothing of what is gone."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric as Found
from prometheus_client.parser import text_string_to_metric_families

from lbproxy.control import metrics_reference
from tests.running import Backends, Proxy, backend_list, get, in_thread
from tests.tools import require_tool


@pytest.fixture
async def backends() -> AsyncIterator[Backends]:
    async with Backends("b1", "b2", "b3") as started:
        yield started


async def scraped(proxy: Proxy) -> dict[str, Found]:
    page = await asyncio.to_thread(proxy.admin, "/metrics")
    return {family.name: family for family in text_string_to_metric_families(page)}


def labels_of(family: Found) -> dict[str, set[str]]:
    """Every label of a family's samples, with its values."""
    found: dict[str, set[str]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            found.setdefault(label, set()).add(value)
    return found


async def test_the_page_is_what_the_reference_says_no_more_and_no_less(tmp_path: Path, backends: Backends) -> None:
    with Proxy(tmp_path, {}, pools={"api": {"backends": backend_list(backends.ports)}}) as proxy:
        for number in range(20):
            assert (await get(proxy.port, user=str(number)))[0] == 200
        found = await scraped(proxy)
    said = {
        metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name: metric
        for section in metrics_reference.metrics().values()
        for metric in section
    }
    assert found.keys() == said.keys()
    for name, metric in said.items():
        family = found[name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        labels = labels_of(family)
        assert labels.keys() - {"le"} == {label for label, _ in metric.labels}, name
        for label, words in metric.labels:
            assert not words or labels[label] == set(words), (name, label)


async def test_promtool_finds_nothing_to_say_of_all_of_it(tmp_path: Path, backends: Backends) -> None:
    with Proxy(tmp_path, backends.ports) as proxy:
        assert (await get(proxy.port))[0] == 200
        page = await asyncio.to_thread(proxy.admin, "/metrics")
    check = [require_tool("promtool"), "check", "metrics"]
    done = await asyncio.to_thread(subprocess.run, check, input=page.encode(), capture_output=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


async def test_whoever_leaves_the_configuration_leaves_the_page(tmp_path: Path, backends: Backends) -> None:
    def pool(*names: str) -> dict[str, Any]:
        return {"backends": backend_list({name: backends.ports[name] for name in names})}

    match = {"path": "/web"}
    pools = {"api": pool("b1", "b2", "b3"), "web": pool("b1") | {"match": match}}
    with Proxy(tmp_path, {}, pools=pools) as proxy:
        for number in range(20):
            assert (await get(proxy.port, user=str(number)))[0] == 200
        before = await scraped(proxy)
        proxy.config["pools"] = {"api": pool("b1", "b2")}
        proxy.write_config()
        proxy.signal(signal.SIGHUP)
        await in_thread(proxy, "configuration applied")
        after = await scraped(proxy)
    assert after.keys() == before.keys()
    for name, family in after.items():
        was, now = labels_of(before[name]), labels_of(family)
        assert now.keys() == was.keys(), name
        if "pool" in was:
            assert (was["pool"], now["pool"]) == ({"api", "web"}, {"api"}), name
        if "backend" in was:
            assert (was["backend"], now["backend"]) == ({"b1", "b2", "b3"}, {"b1", "b2"}), name
