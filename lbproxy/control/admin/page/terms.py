"""What the page's words and numbers mean, at its end: a finger, a keyboard or a screen reader cannot hover."""

from __future__ import annotations

from typing import Final

from lbproxy.control.admin.page.table import HEADS
from lbproxy.control.admin.page.words import escape

# Those of a pool's figures and of its busiest keys that are not in the table, too.
_MORE: Final = (
    ("Backends serving", "that new requests may go to"),
    ("Errors", "the part of the requests that was answered with a status of 500 or above, by a backend or here"),
    ("Saved by retries", "the part of the requests that was answered well after an attempt had failed"),
    ("99th percentile", "one request in a hundred took longer"),
    ("Spilled", "the part of the answers that came from another backend than the key's owner, whatever the reason"),
    ("Without a key", "the part of the requests that had none, and went to the least loaded backend"),
    ("Tunnels open", "WebSockets and other upgraded connections"),
    ("Work", "of a key: its part of the seconds for which requests were held, whoever asked"),
    ("Loop lag", "of a worker: how late its event loop came to its last tick"),
)


def terms() -> str:
    words = [(label, title) for _, label, title in HEADS] + list(_MORE)
    items = "".join([f"<div><dt>{label}</dt><dd>{escape(meaning)}</dd></div>" for label, meaning in words])
    return (
        '<details class="terms"><summary>What the numbers say</summary><p>Of the seconds that stand above each table, '
        f"unless it says otherwise.</p><dl>{items}</dl></details>"
    )
