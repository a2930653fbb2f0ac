"""Tracing as the supervisor has it: where spans go now, and that they get there.

The library behind it is loaded only when a configuration asks for spans (`otlp`); it is the extra `otel`.
"""

from __future__ import annotations

import asyncio
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Final

from lbproxy.core.spec import Address, Config, TracingSpec
from lbproxy.observe.journal import Journal, describe
from lbproxy.observe.spans import unpack

if TYPE_CHECKING:
    from lbproxy.observe.otlp import Exporter

CLOSE_TIMEOUT_S: Final = 2.0
_MODULE: Final = "lbproxy.observe.otlp"


class CannotTrace(Exception):
    """Why there can be no spans: one clear line."""


def check(spec: TracingSpec) -> None:
    """Raises CannotTrace if this asks for what is not installed."""
    if not spec.otlp:
        return
    try:
        import_module(_MODULE)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise CannotTrace("tracing needs OpenTelemetry, which is not installed: pip install 'lbproxy[otel]'") from None


class Tracing:
    """Takes what workers tell of sampled requests, and has it sent where the configuration says."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._spec = TracingSpec()
        self._places: dict[tuple[str, str], Address] = {}
        self._exporter: Exporter | None = None

    def follow(self, config: Config) -> None:
        """Send spans where this configuration says. Raises CannotTrace, and has changed nothing."""
        check(config.tracing)
        self._places = {
            (pool.name, backend.name): backend.address for pool in config.pools for backend in pool.backends
        }
        if config.tracing == self._spec:
            return
        self._spec = config.tracing
        before, self._exporter = self._exporter, self._begin(config.tracing)
        if before is not None:  # what it has queued is sent beside us
            threading.Thread(target=before.close, args=(CLOSE_TIMEOUT_S,), name="tracing-end", daemon=True).start()

    def _begin(self, spec: TracingSpec) -> Exporter | None:
        if not spec.otlp:
            return None
        from lbproxy.observe.otlp import Exporter

        try:
            return Exporter(spec, lambda pool, backend: self._places.get((pool, backend)))
        except ValueError as error:  # in a variable of the environment that the library reads
            self._journal.error("tracing is off", error=describe(error))
            return None

    def take(self, text: str, dropped: int) -> None:
        """What a worker tells: packed records, and how many requests it had to leave out before them."""
        exporter = self._exporter
        if exporter is None:
            return
        if dropped:
            self._journal.warning("spans dropped", requests=dropped)
        for record in unpack(text):
            exporter.tell(record)

    async def close(self) -> None:
        """Send what is queued, within bounds."""
        exporter, self._exporter = self._exporter, None
        if exporter is None:
            return
        loop = asyncio.get_running_loop()
        sent: asyncio.Future[bool] = loop.create_future()

        def end() -> None:
            is_sent = exporter.close(CLOSE_TIMEOUT_S)
            loop.call_soon_threadsafe(sent.set_result, is_sent)

        threading.Thread(target=end, name="tracing-close", daemon=True).start()
        if not await sent:
            self._journal.warning("spans lost", collector=self._spec.otlp)
