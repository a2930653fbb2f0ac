"""Reading and watching the configuration file: every way in which it can change, and what is no change yet."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lbproxy.control.problems import ConfigError
from lbproxy.control.source import Source, Watcher, identity

TEXT = """
version: 1
listen: 127.0.0.1:0
pools:
  api:
    sticky: {affinity: {secret: a-very-secret-secret-of-ours}}
    health: {headers: {Authorization: Bearer token-of-the-check}}
    backends: [{url: "http://127.0.0.1:1"}]
"""


def test_a_file_and_a_text_are_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "lbproxy.yaml"
    path.write_text(TEXT)
    file, text = Source(str(path)), Source("demo", TEXT)
    assert file.load() == text.load()
    assert file.identity == identity(str(path))
    assert text.identity is None


def test_a_pipe_gives_its_content_once_and_that_is_said() -> None:
    reader, writer = os.pipe()
    os.write(writer, TEXT.encode())
    os.close(writer)
    source = Source(f"/dev/fd/{reader}")
    config = source.load_to_start()
    for read in (source.load, source.read_again):
        with pytest.raises(ConfigError, match=r"is a pipe, which has given its content once: only from a file"):
            read()
    os.close(reader)
    assert source.fields(config) is not None, "it is the one that was read"


def test_what_is_read_again_is_not_taken_for_read(tmp_path: Path) -> None:
    path = tmp_path / "lbproxy.yaml"
    path.write_text(TEXT)
    source = Source(str(path))
    config, before = source.load(), source.identity
    path.write_text(TEXT.replace(":1", ":22"))
    assert source.read_again() != config
    assert source.identity == before != identity(str(path))
    assert source.fields(config) is not None


@pytest.mark.parametrize("name", ["secret", "health", "headers"])
def test_a_pool_may_be_called_as_it_likes(name: str) -> None:
    pools = f"pools: {{{name}: {{backends: [{{name: b1, url: 'http://127.0.0.1:1'}}]}}}}"
    source = Source("text", f"listen: 127.0.0.1:1\n{pools}")
    fields = source.fields(source.load())
    assert fields is not None
    assert fields["pools"][name]["backends"][0]["name"] == "b1"


def test_the_fields_belong_to_the_configuration_and_tell_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "lbproxy.yaml"
    path.write_text(TEXT)
    source = Source(str(path))
    config = source.load()
    fields = source.fields(config)
    assert fields is not None
    assert fields["pools"]["api"]["ring"]["vnodes"] == 1024
    assert fields["pools"]["api"]["sticky"]["affinity"]["secret"] == "(secret)"
    assert "a-very-secret" not in repr(fields)
    assert fields["pools"]["api"]["health"]["headers"] == {"Authorization": "(secret)"}
    assert "of-the-check" not in repr(fields)
    path.write_text(TEXT.replace(":1", ":2"))
    other = source.load()
    assert source.fields(config) is None
    assert source.fields(other) is not None


def test_a_bad_file_is_an_error_and_is_known_as_read(tmp_path: Path) -> None:
    path = tmp_path / "lbproxy.yaml"
    path.write_text("nonsense: 1\n")
    source = Source(str(path))
    with pytest.raises(ConfigError):
        source.load()
    assert source.identity == identity(str(path))


def test_what_cannot_be_watched_has_no_identity(tmp_path: Path) -> None:
    assert identity(str(tmp_path)) is None
    assert identity(str(tmp_path / "missing")) is None
    assert identity("/dev/stdin\0") is None


class Watched:
    """A watcher at work; `reloads` counts what it asked for."""

    def __init__(self, path: Path) -> None:
        self.source = Source(str(path))
        self.source.load()
        self.every_s = 0.02
        self.reloads = 0

    async def reload(self) -> None:
        self.reloads += 1
        try:
            self.source.load()
        except ConfigError:
            pass

    async def until(self, reloads: int) -> None:
        async with asyncio.timeout(10):
            while self.reloads < reloads:  # noqa: ASYNC110  # files have no event
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        assert self.reloads == reloads


@asynccontextmanager
async def watching(path: Path) -> AsyncIterator[Watched]:
    watched = Watched(path)
    task = asyncio.create_task(Watcher(watched.source, lambda: watched.every_s, watched.reload).run())
    try:
        yield watched
    finally:
        task.cancel()


async def test_writing_in_place_renaming_over_and_coming_back(tmp_path: Path) -> None:
    path = tmp_path / "lbproxy.yaml"
    path.write_text(TEXT)
    async with watching(path) as watched:
        path.write_text(TEXT.replace(":1", ":2"))
        await watched.until(1)
        (tmp_path / "new").write_text(TEXT)
        (tmp_path / "new").rename(path)
        await watched.until(2)
        path.write_text("nonsense: 1\n")
        await watched.until(3)
        path.unlink()
        await watched.until(4)  # refused, and said once: who restarts now has nothing to start with
        path.write_text(TEXT)
        await watched.until(5)


async def test_a_config_map_swaps_a_directory_link(tmp_path: Path) -> None:
    for version, text in (("one", TEXT), ("two", TEXT.replace(":1", ":2"))):
        (tmp_path / version).mkdir()
        (tmp_path / version / "lbproxy.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("one")
    path = tmp_path / "lbproxy.yaml"
    path.symlink_to("..data/lbproxy.yaml")
    async with watching(path) as watched:
        (tmp_path / "..data_tmp").symlink_to("two")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        await watched.until(1)
        assert watched.source.load().pools[0].backends[0].address.port == 2


async def test_a_file_that_is_still_being_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "lbproxy.yaml"
    path.write_text(TEXT)
    async with watching(path) as watched:
        watched.every_s = 0.05
        with path.open("w") as file:
            for line in TEXT.splitlines(keepends=True) * 3:
                file.write(f"# {line}")
                file.flush()
                os.utime(path)
                await asyncio.sleep(0.03)
        assert watched.reloads == 0
        await watched.until(1)


async def test_watching_can_be_switched_off_and_what_was_read_otherwise_is_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbproxy.control.source.IDLE_S", 0.02)
    path = tmp_path / "lbproxy.yaml"
    path.write_text(TEXT)
    async with watching(path) as watched:
        watched.every_s = 0.0
        await asyncio.sleep(0.05)
        path.write_text(TEXT.replace(":1", ":2"))
        await asyncio.sleep(0.15)
        assert watched.reloads == 0
        watched.source.load()
        watched.every_s = 0.02
        await asyncio.sleep(0.15)
        assert watched.reloads == 0
