"""The corpus as a command: `python -m tests.wire.run --target nginx|haproxy|caddy|lbproxy|HOST:PORT`.

HOST:PORT is a proxy that runs already, with one backend on loopback at the port given by `--backend-port`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Sequence

from tests.running import free_port
from tests.wire.backend import Backend
from tests.wire.case import Case
from tests.wire.corpus import CASES
from tests.wire.play import Played, Result, play_all
from tests.wire.targets import NAMES, NotStarted, running


async def run(target: str, cases: Sequence[Case], jobs: int = 32, backend_port: int = 0, retry: bool = True) -> Played:
    """Run these cases against a proxy by name, started here, or by HOST:PORT."""
    backend = Backend()
    listening = await backend.start(backend_port)
    try:
        if target in NAMES:
            port = free_port()
            with await asyncio.to_thread(_enter, running(target, port, listening, free_port())):
                return await play_all(cases, backend, "127.0.0.1", port, jobs, retry)
        host, _, given = target.rpartition(":")
        return await play_all(cases, backend, host, int(given), jobs, retry)
    finally:
        backend.stop()


def _enter(manager: contextlib.AbstractContextManager[None]) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    stack.enter_context(manager)
    return stack


def select(words: Sequence[str]) -> list[Case]:
    """The cases whose id holds one of these words; all of them without words."""
    return [case for case in CASES if not words or any(word in case.id for word in words)]


def score(results: Sequence[Result]) -> str:
    """MUST 380/382, SHOULD 130/141."""
    parts = []
    for level in ("MUST", "SHOULD"):
        mine = [result for result in results if result.case.level == level]
        parts.append(f"{level} {sum(result.has_passed for result in mine)}/{len(mine)}")
    return ", ".join(parts)


def describe(result: Result, mark: bytes = b"~~") -> str:
    """A failure for people: what was sent, seen and expected."""
    case = result.case
    lines = [f"{case.level} {case.id} (RFC {case.section}){': ' + case.why if case.why else ''}"]
    lines += [f"    sent      {shorten(step) if isinstance(step, bytes) else step}" for step in case.send]
    lines += [f"    answer {name}  {shorten(repr(steps))}" for name, steps in case.answer.items()]
    lines += [f"    {fault.replace(result.seen.mark.decode(), mark.decode())}" for fault in result.faults]
    lines.append(f"    seen      {result.seen.show().replace(result.seen.mark.decode(), mark.decode())}")
    return "\n".join(lines)


def shorten(what: bytes | str) -> str:
    """Octets as Python would write them, or a text, cut in the middle when there is much of it."""
    text = what if isinstance(what, str) else repr(what)
    return text if len(text) < 600 else f"{text[:400]} ... {text[-100:]} ({len(what)} in all)"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire.run", description=__doc__)
    parser.add_argument("--target", required=True, help=f"{', '.join(NAMES)} or HOST:PORT of a running proxy")
    parser.add_argument("--backend-port", type=int, default=0, help="where the running proxy expects its backend")
    parser.add_argument("--jobs", type=int, default=32, help="cases at a time (default 32)")
    parser.add_argument("--once", action="store_true", help="do not run failures again")
    parser.add_argument("--json", action="store_true", help="write the results as JSON")
    parser.add_argument("--quiet", action="store_true", help="only the ids of what failed")
    parser.add_argument("words", nargs="*", help="only cases whose id holds one of these")
    options = parser.parse_args(argv)
    begun = time.monotonic()
    try:
        played = asyncio.run(
            run(options.target, select(options.words), options.jobs, options.backend_port, not options.once)
        )
    except NotStarted as error:
        print(error, file=sys.stderr)
        return 1
    failed = [result for result in (*played.results, *played.bystander) if not result.has_passed]
    if options.json:
        rows = [
            {"id": r.case.id, "level": r.case.level, "passed": r.has_passed, "faults": r.faults} for r in played.results
        ]
        print(json.dumps(rows, indent=1))
        return 1 if failed else 0
    for result in failed:
        print(f"{result.case.level:6} {result.case.id}" if options.quiet else describe(result) + "\n")
    for stray in played.strays:
        print(f"stray at the backend: {stray.show()} {bytes(stray.raw[:200])!r}")
    print(f"{options.target}: {score(played.results)} in {time.monotonic() - begun:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
