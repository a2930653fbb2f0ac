"""YAML text into a tree that knows where everything stands.

The parser's events are read directly, and scalars stay text: what `010`, `1:30`, `on` or `1.10` mean is decided by the
field they are given to, not by the look of the word, so that the traps of YAML 1.1 have nothing to bite. On the way

- a key given twice, a key that is not text, and an explicit tag are problems;
- aliases repeat a value, and `<<` merges mappings into one (its own keys win, then the earlier source); what they add
  is counted and limited, and a value may not contain itself;
- `${NAME}` and `${NAME:-default}` in values are replaced from the environment after parsing, so that what they bring
  is never taken for structure; `$$` is a dollar sign. An empty variable counts as unset where there is a default.

Problems are collected and the tree is built as far as it goes; only a syntax error or an exhausted limit ends it. The
limits are such that no file takes long to be refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import yaml

from lbproxy.control.syntax import explain_syntax
from lbproxy.control.values import quote

Path = tuple[str | int, ...]

MAX_DEPTH: Final = 32
# What a file may hold at the most, so that none takes long to be refused, whatever its size.
MAX_VALUES: Final = 60_000
MAX_REPEATED_NODES: Final = 50_000
MAX_BROUGHT: Final = 4 << 20  # characters out of the environment
MAX_TROUBLES: Final = 1000
# A text counts as one node more for each so many of its characters: they are looked at again at every repetition.
_NODE_CHARACTERS: Final = 100

LINE_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
NULL_WORDS: Final = frozenset({"", "~", "null", "Null", "NULL"})
# A default ends at the latest where another reference begins, so that nothing is looked through more than once.
_REFERENCE: Final = re.compile(r"\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)(?:\}|(:-)((?:[^}$]|\$(?!\{))*)(\}|\$\{))|(\{))")
# What YAML 1.1 5.1 does not call printable.
_FORBIDDEN: Final = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Line and column, both from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Node:
    """A value: text, nothing (None), a list or a mapping. `size` counts the nodes in it, repeated ones each time, and
    long texts for several."""

    place: Place
    value: str | list[Node] | dict[str, Entry] | None = None
    size: int = 1

    def plain(self) -> object:
        """The value without its places: str, None, list and dict."""
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        if isinstance(self.value, dict):
            return {name: entry.node.plain() for name, entry in self.value.items()}
        return self.value


@dataclass(slots=True)
class Entry:
    """A key of a mapping: where it stands and its value. `merged` came in through `<<` and may be overridden."""

    place: Place
    node: Node
    merged: bool = False


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something wrong at one place. `path` is empty where the text itself is at fault.

    `is_denied`: it is a permission that is missing, and another user may have it.
    """

    place: Place
    path: Path
    message: str
    hint: str = ""
    is_denied: bool = False


class Hopeless(Exception):
    """The rest of the text cannot be read. Carries the `Trouble` that ended it."""

    def __init__(self, place: Place, message: str, path: Path = ()) -> None:
        super().__init__(message)
        self.trouble = Trouble(place, path, message)


@dataclass(slots=True)
class Tree:
    """What was read: `root` is None when there was nothing or it could not be read.

    `begun` is then the outermost mapping as far as it was whole when the end came.
    """

    root: Node | None = None
    begun: Node | None = None
    troubles: list[Trouble] = field(default_factory=list)


def read_tree(text: str, environ: Mapping[str, str]) -> Tree:
    """Read one YAML document. Never raises for what `text` holds."""
    tree = Tree()
    if bad := _FORBIDDEN.search(text):
        lines = LINE_BREAK.split(text[: bad.start()])
        place = Place(len(lines), len(lines[-1]) + 1)
        tree.troubles.append(Trouble(place, (), f"the character U+{ord(bad[0]):04X} may not stand in YAML"))
        return tree
    builder = _Builder(text, environ, tree.troubles)
    try:
        tree.root = builder.document()
    except Hopeless as end:
        tree.troubles.append(end.trouble)
        tree.begun = builder.outermost
    return tree


class _Builder:
    """Turns the events of one document into nodes."""

    def __init__(self, text: str, environ: Mapping[str, str], troubles: list[Trouble]) -> None:
        self.events = _events(text)
        self.environ = environ
        self.troubles = troubles
        self.anchors: dict[str, Node | None] = {}  # None while the anchored value is still being read
        self.values = 0
        self.repeated = 0
        self.brought = 0
        self.outermost: Node | None = None

    def document(self) -> Node | None:
        next(self.events)  # StreamStart
        if isinstance(next(self.events), yaml.StreamEndEvent):
            return None
        root = self.node(next(self.events), ())
        next(self.events)  # DocumentEnd
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise Hopeless(_place(after), "a second YAML document begins here, and there may be only one")
        return root

    def node(self, event: yaml.Event, path: Path) -> Node:
        place = _place(event)
        if isinstance(event, yaml.AliasEvent):
            return self.repeat(event.anchor or "", place, path)
        assert isinstance(event, yaml.NodeEvent)
        self.values += 1
        if self.values > MAX_VALUES:
            raise Hopeless(place, f"there are more than {MAX_VALUES} values")
        if len(path) > MAX_DEPTH:
            raise Hopeless(place, f"nested more than {MAX_DEPTH} levels deep")
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        node = self.content(event, place, path)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def content(self, event: yaml.NodeEvent, place: Place, path: Path) -> Node:
        tag: str | None = getattr(event, "tag", None)
        if tag is not None:
            shown = quote(tag.replace("tag:yaml.org,2002:", "!!"))
            self.wrong(place, path, f"the tag {shown} is not supported, fields know their types")
        if isinstance(event, yaml.ScalarEvent):
            text = self.scalar(event, place, path)
            return Node(place, text, 1 + len(text or "") // _NODE_CHARACTERS)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(place, path)
        return self.mapping(place, path)

    def sequence(self, place: Place, path: Path) -> Node:
        items: list[Node] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(event, (*path, len(items))))
        return Node(place, items, 1 + sum(item.size for item in items))

    def mapping(self, place: Place, path: Path) -> Node:
        entries: dict[str, Entry] = {}
        if not path:
            self.outermost = Node(place, entries)
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key_place = _place(event)
            key = self.key(event, key_place, path)
            value = self.node(next(self.events), (*path, "?" if key is None else key))
            if key == "<<":
                self.merge(entries, value, key_place, path)
            elif key is not None:
                self.add(entries, key, Entry(key_place, value), path)
        return Node(place, entries, 1 + sum(entry.node.size for entry in entries.values()))

    def key(self, event: yaml.Event, place: Place, path: Path) -> str | None:
        """The text of a key; None, with the trouble noted, when it has none."""
        if isinstance(event, yaml.ScalarEvent):
            text: str = event.value
            if event.anchor is not None or event.tag is not None:
                self.wrong(place, path, "a key may have neither an anchor nor a tag")
            if text and text.isprintable():
                return text
            self.wrong(place, path, f"{quote(text)} is no key" if text else "a key is missing before the colon")
            return None
        self.node(event, (*path, "?"))
        self.wrong(place, path, "a key must be text")
        return None

    def add(self, entries: dict[str, Entry], key: str, entry: Entry, path: Path) -> None:
        before = entries.get(key)
        if before is None or before.merged:
            entries[key] = entry
        else:
            self.wrong(entry.place, (*path, key), f"given twice, first on line {before.place.line}")

    def merge(self, entries: dict[str, Entry], value: Node, place: Place, path: Path) -> None:
        sources = value.value if isinstance(value.value, list) else [value]
        for source in sources:
            if not isinstance(source.value, dict):
                self.wrong(place, (*path, "<<"), "only a mapping, or a list of mappings, can be merged")
                continue
            for name, entry in source.value.items():
                entries.setdefault(name, Entry(entry.place, entry.node, merged=True))

    def repeat(self, anchor: str, place: Place, path: Path) -> Node:
        if anchor not in self.anchors:
            self.wrong(place, path, f"*{anchor} repeats &{anchor}, which is not defined before it")
            return Node(place)
        node = self.anchors[anchor]
        if node is None:
            raise Hopeless(place, f"*{anchor} stands inside the value that it repeats", path)
        self.repeated += node.size
        if self.repeated > MAX_REPEATED_NODES:
            raise Hopeless(place, f"aliases repeat more than {MAX_REPEATED_NODES} values, or as much text", path)
        return node

    def scalar(self, event: yaml.ScalarEvent, place: Place, path: Path) -> str | None:
        text: str = event.value
        if event.style is None and text in NULL_WORDS:
            return None
        if bad := _FORBIDDEN.search(text):
            self.wrong(place, path, f"holds the character U+{ord(bad[0]):04X}, which no value may have")
            text = _FORBIDDEN.sub("?", text)
        if "$" in text:
            text = _REFERENCE.sub(lambda found: self.reference(found, place, path), text)
            if text and text in NULL_WORDS:
                return None
        return text

    def reference(self, found: re.Match[str], place: Place, path: Path) -> str:
        name, has_default, default, end, unfinished = found.groups()
        if found[0] == "$$":
            return "$"
        if unfinished:
            self.wrong(place, path, "${ begins no ${NAME} or ${NAME:-default}, write $${ to mean the characters")
            return ""
        if end == "${":
            self.wrong(place, path, f"the default of ${{{quote(name)[1:-1]}}} may not hold another ${{")
            return ""
        value = self.environ.get(name)
        if has_default:
            value = value or str(default)
        if value is None:
            shown = quote(name)[1:-1]
            self.wrong(place, path, f"the environment variable {shown} is not set, and ${{{shown}}} has no default")
            return ""
        self.brought += len(value)
        if self.brought > MAX_BROUGHT:
            raise Hopeless(place, f"variables bring more than {MAX_BROUGHT >> 20} MiB", path)
        return value

    def wrong(self, place: Place, path: Path, message: str) -> None:
        self.troubles.append(Trouble(place, path, message))
        if len(self.troubles) == MAX_TROUBLES:
            raise Hopeless(place, f"there are {MAX_TROUBLES} mistakes up to here, and no more is looked at")


def _place(event: yaml.Event) -> Place:
    mark = event.start_mark
    assert mark is not None  # the parser marks every event
    return Place(mark.line + 1, mark.column + 1)


def _events(text: str) -> Iterator[yaml.Event]:
    """The parser's events, with everything it can raise turned into `Hopeless`."""
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_event():
            event: yaml.Event = loader.get_event()  # type: ignore[no-untyped-call]
            yield event
    except yaml.MarkedYAMLError as error:
        line, column, message = explain_syntax(error, text)
        raise Hopeless(Place(line, column), message) from None
    except (yaml.YAMLError, ValueError, OverflowError):
        # An escape such as "\U00110000" names no character: the scanner lets chr() raise.
        raise Hopeless(Place(loader.line + 1, loader.column + 1), "this is not valid YAML") from None
    finally:
        loader.dispose()
