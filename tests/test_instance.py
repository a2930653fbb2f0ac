"""An instance in this process, without workers: what happens between the question and the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lbproxy.control.admin.view import Decision, Rejected
from lbproxy.control.source import Source
from lbproxy.instance import Instance
from lbproxy.observe.journal import Stderr

TEXT = """\
listen: 127.0.0.1:0
workers: 1
admin: {listen: null}
pools:
  api: {backends: [{name: b1, url: 'http://127.0.0.1:1'}, {name: b2, url: 'http://127.0.0.1:2'}]}
"""
WEB = "  web: {match: {path: /web}, backends: [{name: w1, url: 'http://127.0.0.1:3'}]}\n"


@asynccontextmanager
async def held(file: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Instance]:
    """The instance of a file; nobody is waited for, as there are no workers."""
    source = Source(str(file))
    instance = Instance(source.load(), source, Stderr("error", "text"))

    async def at_once(_number: int | None = None) -> bool:
        return True

    for wait in ("acknowledged", "adopted"):
        monkeypatch.setattr(instance.supervisor, wait, at_once)
    try:
        yield instance
    finally:
        await instance.abort()
        instance.close()


async def test_a_pool_that_goes_while_something_is_decided_for_it_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lbproxy.yaml"
    file.write_text(TEXT + WEB)
    async with held(file, monkeypatch) as instance:

        async def adopted() -> bool:
            file.write_text(TEXT)
            assert (await instance.reload_now()).outcome == "applied"
            return True

        monkeypatch.setattr(instance.supervisor, "adopted", adopted)
        with pytest.raises(Rejected, match="there is no pool web") as caught:
            await instance.decide("web", [Decision("w1", weight=2.0)], "kim", None, "", False)
        assert caught.value.status == 404
