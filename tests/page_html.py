"""Reads the page as a strict reader would, and tells what is wrong with it."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Final

VOID: Final = {"meta", "link", "input", "br", "hr", "img"}
# Elements of SVG that have no content here, and are written with a slash.
CLOSED: Final = {"circle", "line", "rect", "path", "polygon", "polyline", "use"}
INTERACTIVE: Final = {"a", "button", "input", "select", "textarea"}


class Reading(HTMLParser):
    """`errors` are what breaks rules; the rest is what is in it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.errors: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.addresses: list[str] = []
        self.headings: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.captions: list[str] = []
        self.text = ""
        self._open: list[tuple[str, dict[str, str]]] = []
        self.feed(text)
        self.close()
        self.errors += [f"<{tag}> is not closed" for tag, _ in self._open]
        self.errors += [f"id {name} comes twice" for name in set(self.ids) if self.ids.count(name) > 1]
        self.errors += [f"nothing has the id {name}" for name in self.references if name not in self.ids]

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attributes]
        found = {name: value or "" for name, value in attributes}
        self.errors += [f"<{tag}> has {name} twice" for name in set(names) if names.count(name) > 1]
        self.errors += [f"<{tag}> has {name}" for name in names if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in found):
            self.errors.append(f"<{tag}> is inline")
        if tag in INTERACTIVE and any(opened in ("a", "button") for opened, _ in self._open):
            self.errors.append(f"<{tag}> within something to press")
        if tag == "button" and "type" not in found and not any(opened == "form" for opened, _ in self._open):
            self.errors.append("a button outside of a form without a type")
        if tag == "th" and found.get("scope") not in ("col", "row"):
            self.errors.append("<th> without a scope")
        self._note(tag, found)
        if tag not in VOID:
            self._open.append((tag, found))
        if tag == "table":
            self.tables.append([])
            self.captions.append("")
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag in ("h1", "h2", "h3"):
            self.headings.append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in CLOSED:
            self.errors.append(f"<{tag}/> closes itself")
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1][0] != tag:
            self.errors.append(f"</{tag}> closes {self._open[-1:]}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self._open]
        if "title" in tags or "script" in tags:
            return
        self.text += data
        if "td" in tags or "th" in tags:
            self.tables[-1][-1][-1] += data
        if "caption" in tags:
            self.captions[-1] += data
        if any(tag in tags for tag in ("h1", "h2", "h3")):
            self.headings[-1] += data

    def _note(self, tag: str, found: dict[str, str]) -> None:
        if "id" in found:
            self.ids.append(found["id"])
        for name in ("for", "aria-labelledby"):
            if name in found:
                self.references += found[name].split()
        for name in ("href", "src", "action"):
            if name in found:
                self.addresses.append(found[name])
                if found[name].startswith("#"):
                    self.references.append(found[name][1:])
        if tag == "input" and found.get("type") not in ("hidden",):
            is_named = "aria-label" in found or any(opened == "label" for opened, _ in self._open)
            if not is_named and "id" not in found:
                self.errors.append("an input without a name")
