"""The head of a backend's answer: taken apart, and put together again for the client as far as the head decides it."""

from __future__ import annotations

from typing import Final, final

from lbproxy.core.headers import LENGTH, NO_CONNECTION, Shape, Values, connection_of, with_value
from lbproxy.dataplane.wire import ResponseParser

_WITHOUT_LENGTH: Final = frozenset((b"content-length",))


@final
class Answer:
    """A final head.

    `head` is what came. `lines` are the status line and the fields that go on to the client; what depends on the
    request, how the connection goes on and how a body without a length is framed, is not among them. `framing` and
    `length` are those of the body as it comes (`core.headers`). `named` are the fields that belong to the backend's
    connection alone. `is_kept`: the connection to the backend lasts. `is_dated`: there is a Date among the lines.
    """

    __slots__ = ("framing", "head", "is_dated", "is_kept", "length", "lines", "named", "status")

    def __init__(self, head: bytes, parser: ResponseParser, shape: Shape, framing: int, length: int) -> None:
        values = parser.values
        connection = connection_of(shape, values) if shape.connection else NO_CONNECTION
        without = connection.named
        if framing == LENGTH:
            written = values[shape.content_length]
            if len(written) > 1 and (written[0] == 48 or written[-1] < 48):  # "0", " "
                values = with_value(values, shape.content_length, b"%d" % length)
        elif parser.status == 204:
            without = without | _WITHOUT_LENGTH
        self.head: Final = head
        self.status: Final = parser.status
        self.framing: Final = framing
        self.length: Final = length
        self.named: Final = without
        # A transfer coding in HTTP/1.0 is faulty framing: the connection ends with that message (RFC 9112 6.1).
        is_asked_to = connection.keep_alive and shape.transfer_encoding < 0
        self.is_kept: Final = not connection.close and (parser.minor == 1 or is_asked_to)
        self.is_dated: Final = shape.date
        self.lines: Final = parser.line + (shape.lines(values, without) if without else shape.template % values)


def interim_lines(shape: Shape, values: Values) -> bytes:
    """The fields that go on of an answer that has no body."""
    return shape.lines(values, connection_of(shape, values).named | _WITHOUT_LENGTH)
