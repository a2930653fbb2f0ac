"""A slow backend: takes an upload at a given rate and answers with the number of bytes it got. Run as a program."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_CHUNK_BYTES = 64 * 1024


class Sink(ThreadingHTTPServer):
    """`rate` is in bytes per second and holds for each upload."""

    daemon_threads = True

    def __init__(self, port: int, rate: float) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.rate = rate


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Sink

    def do_GET(self) -> None:
        """A probe."""
        self._answer(b"ok\n")

    def do_POST(self) -> None:
        """An upload of known length or in chunks, read no faster than the rate."""
        start, taken = time.monotonic(), 0
        for size in self._parts():
            taken += self._read(size, start, taken)
        self._answer(b"%d\n" % taken)

    def log_message(self, format: str, *args: object) -> None:
        """No log: this is a measuring instrument."""

    def _parts(self) -> Iterator[int]:
        """The sizes of the pieces that the body comes in, read between them: one, or one for each chunk."""
        length = self.headers.get("Content-Length")
        if length is not None:
            yield int(length)
            return
        while size := int(self.rfile.readline(), 16):
            yield size
            self.rfile.readline()
        self.rfile.readline()

    def _read(self, size: int, start: float, taken: int) -> int:
        """Read `size` bytes, no faster than the rate; returns how many came."""
        got = 0
        while got < size:
            part = self.rfile.read(min(_CHUNK_BYTES, size - got))
            if not part:
                break
            got += len(part)
            ahead = (taken + got) / self.server.rate - (time.monotonic() - start)
            if ahead > 0:
                time.sleep(ahead)
        return got

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="bytes per second")
    options = parser.parse_args()
    Sink(options.port, options.rate).serve_forever()
