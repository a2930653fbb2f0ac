"""What is wrong with a configuration, as it is told: one `Problem` after the other, and `ConfigError` with them all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

# What is printed; `ConfigError.problems` holds all that were looked for.
MAX_PRINTED: Final = 100
_WINDOW: Final = 120


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. Line and column count from 1; both are 0 when the file itself is the problem.

    `path` is where in the configuration ("" when the text is no configuration yet), `hint` what was probably meant,
    `source` the line as it stands in the file, of a very long one what is around the column: the part that begins after
    `source_start` characters.
    """

    file: str
    line: int
    column: int
    path: str
    message: str
    hint: str = ""
    source: str = ""
    source_start: int = 0

    def headline(self, kind: str = "") -> str:
        """`file:line:column: path: what, did you mean ...?`; `kind` is a word before the path."""
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        path = f"{kind}: " if kind else ""
        path += f"{self.path}: " if self.path else ""
        hint = f", did you mean {self.hint}?" if self.hint else ""
        return f"{where}: {path}{self.message}{hint}"

    def as_dict(self) -> dict[str, str | int]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Self:
        """What `as_dict` told."""
        return cls(**{field.name: told[field.name] for field in fields(cls) if field.name in told})

    def __str__(self) -> str:
        return self.shown()

    def shown(self, kind: str = "") -> str:
        """The headline, the line and a caret under the column."""
        if not self.source.strip():
            return self.headline(kind)
        at = self.column - 1 - self.source_start
        start = max(0, at - _WINDOW // 2) if len(self.source) > _WINDOW else 0
        shown = self.source[start : start + _WINDOW]
        before = shown[: at - start]
        pad = "".join(c if c == "\t" else " " for c in before)
        return f"{self.headline(kind)}\n{_printable(shown)}\n{pad}^"


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """As they stand in the file."""
    return tuple(sorted(problems, key=lambda problem: (problem.line, problem.column)))


class ConfigError(Exception):
    """A configuration that cannot be used. `problems` are all that was found, in the order of the file, and `advice` is
    a line for people about what else they can do."""

    def __init__(self, problems: Sequence[Problem], advice: str = "") -> None:
        self.problems = in_order(problems)
        self.advice = advice
        super().__init__(self.problems[0].headline())

    def __str__(self) -> str:
        shown = [str(problem) for problem in self.problems[:MAX_PRINTED]]
        if (rest := len(self.problems) - MAX_PRINTED) > 0:
            shown.append(f"and {rest} more")
        if self.advice:
            shown.append(self.advice)
        return "\n".join(shown)


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in line)
