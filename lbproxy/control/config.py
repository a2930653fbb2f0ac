"""A configuration file into a checked `File` and a `Config`, or into everything that is wrong with it, all at once:

    lbproxy.yaml:7:5: pools.api.stiky: unknown field, did you mean sticky?
        stiky: {header: X-User-ID}
        ^

`load` and `loads` give the core's `Config`, `read` and `reads` the `File` that it is built from. All raise
`ConfigError`, and nothing else, for whatever a file can be or hold. `examine` raises nothing, tells what there is to
tell and looks at the files that the configuration names as well.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from lbproxy.control.build import build
from lbproxy.control.faults import check_named_files, check_tree
from lbproxy.control.problems import ConfigError, Problem, in_order
from lbproxy.control.schema import File
from lbproxy.control.tree import LINE_BREAK, Path, Tree, Trouble, read_tree
from lbproxy.control.values import quote
from lbproxy.core.spec import Config

MAX_FILE_BYTES: Final = 4 << 20
MAX_SOURCE: Final = 1000


@dataclass(frozen=True, slots=True)
class Findings:
    """What came of reading a file: the `file` itself unless there are `problems`, which are those of the text.

    `unfit` are problems with the files that it names, except for those that are nothing but a permission that whoever
    looked does not have: these are `denied`.
    """

    file: File | None
    problems: tuple[Problem, ...] = ()
    unfit: tuple[Problem, ...] = ()
    denied: tuple[Problem, ...] = ()

    def wrong(self, is_proxy: bool = False) -> tuple[Problem, ...]:
        """All that is wrong; `is_proxy`: whoever looked will run it, and needs what was denied."""
        return in_order(self.problems + self.unfit + (self.denied if is_proxy else ()))

    def usable(self, is_proxy: bool = False) -> File:
        """The file. Raises ConfigError for what is wrong."""
        if self.file is None or self.wrong(is_proxy):
            raise ConfigError(self.wrong(is_proxy))
        return self.file


def load(path: str | os.PathLike[str]) -> Config:
    """The configuration in the file at `path`. Raises ConfigError."""
    return build(read(path), source=os.fspath(path))


def loads(text: str, name: str = "<text>", environ: Mapping[str, str] | None = None) -> Config:
    """The configuration in `text`; `name` stands for the file in messages. Raises ConfigError."""
    return build(reads(text, name, environ), source=name)


def read(path: str | os.PathLike[str]) -> File:
    """The checked file at `path`, with every default filled in. Raises ConfigError."""
    name = os.fspath(path)
    return reads(read_text(name), name)


def reads(text: str, name: str = "<text>", environ: Mapping[str, str] | None = None) -> File:
    """The checked file that `text` is. `${NAME}` comes from `environ`, by default the process's. Raises ConfigError."""
    tree = read_tree(text, os.environ if environ is None else environ)
    return _examined(tree, text, name).usable()


def examine(path: str | os.PathLike[str], looks_at_files: bool = True) -> Findings:
    """Everything about the file at `path`, and about the files that it names unless they are not to be looked at."""
    name = os.fspath(path)
    try:
        text = read_text(name)
    except ConfigError as error:
        return Findings(None, error.problems)
    return examine_text(text, name, looks_at_files)


def examine_text(text: str, name: str, looks_at_files: bool = True) -> Findings:
    """The same about a text; `name` stands for the file in messages."""
    tree = read_tree(text, os.environ)
    found = _examined(tree, text, name)
    if tree.root is None or not looks_at_files:
        return found
    troubles = _besides(tree, check_named_files(tree.root))
    unfit = [trouble for trouble in troubles if not trouble.is_denied]
    denied = [trouble for trouble in troubles if trouble.is_denied]
    return replace(found, unfit=_problems(name, text, unfit), denied=_problems(name, text, denied))


def _examined(tree: Tree, text: str, name: str) -> Findings:
    """What came of the text alone."""
    if tree.root is None and not tree.troubles:
        return Findings(None, (_of_file(name, "is empty"),))
    file, found = check_tree(tree.root) if tree.root is not None else (None, [])
    problems = _problems(name, text, tree.troubles + _besides(tree, found))
    return Findings(None if problems else file, problems)


def _besides(tree: Tree, found: list[Trouble]) -> list[Trouble]:
    """What was found, without what only follows from the tree's own troubles."""
    spoiled = {trouble.path for trouble in tree.troubles}
    return [trouble for trouble in found if trouble.path not in spoiled or not trouble.path]


def read_text(name: str) -> str:
    """The text of the file of that name. Raises ConfigError."""
    return decode(_content(name), name)


def decode(content: bytes, name: str) -> str:
    """The text of a file's content. Raises ConfigError where it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", "replace")
        lines = LINE_BREAK.split(before)
        message = f"is not UTF-8: byte 0x{content[error.start]:02x}"
        raise ConfigError([Problem(name, len(lines), len(lines[-1]) + 1, "", message)]) from None


def _content(name: str) -> bytes:
    try:
        with open(name, "rb") as file:
            if stat.S_ISDIR(os.fstat(file.fileno()).st_mode):
                raise IsADirectoryError
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError([_of_file(name, "there is no such file")]) from None
    except IsADirectoryError:
        raise ConfigError([_of_file(name, "is a directory")]) from None
    except PermissionError:
        raise ConfigError([_of_file(name, "may not be read: permission denied")]) from None
    except (OSError, ValueError) as error:
        raise ConfigError([_of_file(name, f"cannot be read: {_reason(error)}")]) from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError([_of_file(name, f"is larger than {MAX_FILE_BYTES >> 20} MiB")])
    return content


def _of_file(name: str, message: str) -> Problem:
    """A problem of the file itself."""
    return Problem(name, 0, 0, "", message)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _problems(name: str, text: str, troubles: list[Trouble]) -> tuple[Problem, ...]:
    lines = LINE_BREAK.split(text) if troubles else []
    return tuple([_problem(name, lines, trouble) for trouble in troubles])


def _problem(name: str, lines: list[str], trouble: Trouble) -> Problem:
    line, column = trouble.place.line, trouble.place.column
    source = lines[line - 1] if line <= len(lines) else ""
    # Of a very long line the part around the column: there may be many problems in it, and each has its own.
    start = max(0, column - MAX_SOURCE // 2) if len(source) > MAX_SOURCE else 0
    shown = source[start : start + MAX_SOURCE]
    return Problem(name, line, column, _dotted(trouble.path), trouble.message, trouble.hint, shown, start)


def _dotted(path: Path) -> str:
    """`pools.api.backends[0].url`; a name that is not a plain word stands in brackets and quotes."""
    return "".join(map(_step, path)).removeprefix(".")


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if re.fullmatch(r"[\w-]{1,100}", step) else f"[{quote(step)}]"
