"""A reload is good, the same or refused; it says which, and never runs beside another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from lbproxy.control.config import loads
from lbproxy.control.problems import ConfigError
from lbproxy.control.reload import MAX_TOLD, Refused, Reloader
from lbproxy.control.restart import needs_restart
from lbproxy.core.spec import AdminSpec, Config
from lbproxy.observe.journal import Fields, Journal, Level

TEXT = "{version: 1, listen: '127.0.0.1:0', workers: 1, pools: {api: {backends: [{url: 'http://127.0.0.1:1'}]}}}"
CONFIG = loads(TEXT)
OTHER = loads(TEXT.replace("127.0.0.1:1", "127.0.0.1:2"))


class Instance:
    """What a reloader works on."""

    def __init__(self, load: Callable[[], Config]) -> None:
        self.applied: list[Config] = []
        self.events: list[tuple[Level, str, Fields]] = []
        self.refusal = ""
        self.is_complete = True
        self.running = 0
        journal = Journal(lambda level, event, fields: self.events.append((level, event, fields)))
        self.reloader = Reloader(CONFIG, load, self.apply, journal, lambda: 1234.5)

    async def apply(self, config: Config) -> bool:
        self.running += 1
        assert self.running == 1
        await asyncio.sleep(0.01)
        self.running -= 1
        if self.refusal:
            raise Refused(self.refusal)
        self.applied.append(config)
        return self.is_complete


async def test_a_good_one_is_applied() -> None:
    instance = Instance(lambda: OTHER)
    result = await instance.reloader.reload()
    assert (result.outcome, result.problems, result.needs_restart, result.is_complete) == ("applied", (), (), True)
    assert instance.applied == [OTHER]
    status = instance.reloader.status
    assert (dict(status.counts), status.is_last_good, status.at) == (
        {"applied": 1, "unchanged": 0, "refused": 0},
        True,
        1234.5,
    )


async def test_the_same_again_changes_nothing() -> None:
    instance = Instance(lambda: loads(TEXT, "another name"))
    assert (await instance.reloader.reload()).outcome == "unchanged"
    assert instance.applied == []


async def test_a_bad_one_is_refused_with_every_problem_and_the_next_good_one_is_good() -> None:
    texts = [TEXT.replace("listen", "lisen").replace("url", "uri"), TEXT.replace("127.0.0.1:1", "127.0.0.1:2")]
    instance = Instance(lambda: loads(texts.pop(0), "a.yaml"))
    result = await instance.reloader.reload()
    assert result.outcome == "refused"
    assert len(result.problems) >= 2
    assert all(problem.startswith("a.yaml:1:") for problem in result.problems)
    assert instance.applied == []
    assert not instance.reloader.status.is_last_good
    assert [event for _, event, _ in instance.events] == ["configuration refused"] * len(result.problems)
    assert (await instance.reloader.reload()).outcome == "applied"
    assert instance.reloader.status.is_last_good


async def test_what_cannot_be_put_in_force_is_refused_and_tried_again_next_time() -> None:
    instance = Instance(lambda: OTHER)
    instance.refusal = "cannot listen on 127.0.0.1:1: the address is in use"
    result = await instance.reloader.reload()
    assert (result.outcome, result.problems) == ("refused", (instance.refusal,))
    instance.refusal = ""
    assert (await instance.reloader.reload()).outcome == "applied"


async def test_very_many_problems_do_not_flood_the_journal() -> None:
    unknown = "".join(f"unknown_{number}: 1\n" for number in range(100))
    instance = Instance(lambda: loads(unknown))
    assert len((await instance.reloader.reload()).problems) >= 100
    assert len(instance.events) == MAX_TOLD + 1
    assert instance.events[-1][2]["more_problems"] == len((await instance.reloader.reload()).problems) - MAX_TOLD


async def test_reloads_take_turns() -> None:
    configs = [OTHER, CONFIG, OTHER]
    instance = Instance(lambda: configs.pop(0))
    await asyncio.gather(*(instance.reloader.reload() for _ in range(3)))
    assert instance.applied == [OTHER, CONFIG, OTHER]
    assert instance.reloader.status.counts["applied"] == 3


@pytest.mark.parametrize(
    ("after", "names"),
    [
        (CONFIG, ()),
        (replace(CONFIG, workers=7), ("workers",)),
        (replace(CONFIG, admin=AdminSpec(None), workers=2), ("workers", "admin")),
    ],
)
async def test_what_needs_a_restart_is_named(after: Config, names: tuple[str, ...]) -> None:
    assert needs_restart(CONFIG, after) == names
    instance = Instance(lambda: after)
    assert (await instance.reloader.reload()).needs_restart == names
    # It stays true as long as nobody restarts.
    assert (await instance.reloader.reload()).needs_restart == names


async def test_a_worker_that_lags_is_told() -> None:
    instance = Instance(lambda: OTHER)
    instance.is_complete = False
    assert not (await instance.reloader.reload()).is_complete
    assert instance.events[-1][0] == "warning"


def test_config_error_is_what_load_raises() -> None:
    with pytest.raises(ConfigError):
        loads("")
