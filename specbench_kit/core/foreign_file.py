"""Files of other programs: what a user states of one, and what the kit took it for.

Units and columns are known from a format's own names, or stated as in `FILE:unit=ms`. Every reader
says in one line what it took a file for, and how much of it was left out and why; values that
cannot be are doubts, told before any result.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict

from msgspec import Struct

Unit = Literal["s", "ms", "us", "ns"]
PER_SECOND: Mapping[str, float] = {"s": 1.0, "sec": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""How many units of time make a second, by every name that formats have for them."""
IN_WORDS: Mapping[str, str] = {
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
}
WARM_UP = "of the warm-up"
COOL_DOWN = "of the cool-down"
CANCELLED = "cancelled"
CUT_OFF = "cut off by the end of the load"
FAILED = "failed"
WITHOUT_TIMES = "without times"
"""Reasons for which requests are left out, as they follow their number."""
_STATED = re.compile(r"(?P<path>.+?):(?P<options>[a-z_]+=.*)", re.DOTALL)


class StatedFile(Struct, frozen=True):
    """A file, and what its user states of it as `key=value,key=value`."""

    path: Path
    options: str = ""

    @classmethod
    def parse(cls, text: str) -> "StatedFile":
        """Return the file that `FILE` or `FILE:key=value` names; a file of just that name comes
        first.
        """
        match = _STATED.fullmatch(text)
        if match is None or Path(text).expanduser().exists():
            return cls(Path(text).expanduser())
        return cls(Path(match["path"]).expanduser(), match["options"])

    def __str__(self) -> str:
        return f"{self.path}:{self.options}" if self.options else str(self.path)


@dataclass(frozen=True, slots=True)
class FileReading:
    """What a file was taken for: its format with units, how many rows of it were read, and which
    were left out.

    `left_out` counts rows by the reason; `doubts` are sentences about values that cannot be.
    """

    name: str
    taken_for: str
    rows: int
    row_name: str = "requests"
    left_out: Mapping[str, int] = field(default_factory=dict)
    doubts: Sequence[str] = ()

    @property
    def line(self) -> str:
        """The reading in one line."""
        reasons = [f"{count:,} {reason}" for reason, count in self.left_out.items() if count]
        left_out = f"; left out: {', '.join(reasons)}" if reasons else ""
        row_name = self.row_name.removesuffix("s") if self.rows == 1 else self.row_name
        return f"{self.name}: taken for {self.taken_for}; {self.rows:,} {row_name}{left_out}."


class ReadingFields(TypedDict, total=False):
    """The fields of `run.json` about the files of other programs."""

    files: Sequence[str]
    doubts: Sequence[str]


def described_readings(readings: Sequence[FileReading]) -> ReadingFields:
    """Return what `run.json` says of the files of other programs; nothing where there are none."""
    if not readings:
        return {}
    doubts = [f"{reading.name}: {doubt}" for reading in readings for doubt in reading.doubts]
    return {"files": [reading.line for reading in readings], "doubts": doubts}
