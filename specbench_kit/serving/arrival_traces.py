"""Trace files of request arrivals, by the columns of those who publish them, or by columns that the
user names.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, islice
from math import inf, isfinite
from pathlib import Path
from typing import NamedTuple, TextIO

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.foreign_file import IN_WORDS, PER_SECOND, FileReading, Unit
from specbench_kit.core.specs import from_options
from specbench_kit.core.typed_json import whole_number
from specbench_kit.serving.arrivals import ReplayedArrivals, RequestArrival, from_zero

CROWD = 1000
"""Requests that no service gets within a millisecond."""
FEW = 100
"""Requests below which a load that is dense on average may be a burst."""
SPARSE_S = 60.0
"""Mean seconds between two requests from which on the unit of a trace is doubtful."""
WITHOUT_LENGTH = "without a prompt or an answer"


@dataclass(frozen=True, slots=True)
class ArrivalColumns:
    """What a user states of a trace: the unit of its times, the columns of times and of lengths in
    tokens, and from how many seconds after the first request on it is replayed.
    """

    unit: Unit | None = None
    time: str | None = None
    prompt: str | None = None
    output: str | None = None
    from_s: float = 0.0

    def __post_init__(self) -> None:
        require(
            0 <= self.from_s < inf,
            f"from_s is a number of seconds from 0 up, not {self.from_s:g}",
        )


class Layout(NamedTuple):
    """The columns of one publisher, the unit of times that are numbers, and what else tells the
    format from others.

    Without a unit the publisher's times are dates. `marks` are further columns that every row of
    the format has. Times that are `whole` have no fractions; only the columns of an `alone` layout
    may be in a file.
    """

    publisher: str
    time: str
    prompt: str | None
    output: str | None
    unit: Unit | None
    marks: tuple[str, ...] = ()
    whole: bool = False
    alone: bool = False

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [name for name in (self.time, self.prompt, self.output) if name]

    def fits(self, names: Sequence[str]) -> bool:
        """Return True if a file with these columns may be of this format."""
        needed = {*self.columns, *self.marks}
        return needed == set(names) if self.alone else needed.issubset(names)


LAYOUTS = (
    Layout("Azure's trace", "TIMESTAMP", "ContextTokens", "GeneratedTokens", None),
    Layout("Vidur's form of a trace", "arrived_at", "num_prefill_tokens", "num_decode_tokens", "s"),
    Layout("BurstGPT's trace", "Timestamp", "Request tokens", "Response tokens", "s"),
    Layout("Splitwise's form of a trace", "arrival_timestamp", "prompt_size", "token_size", "s"),
    Layout(
        "Qwen-Bailian's trace",
        "timestamp",
        "input_length",
        "output_length",
        "s",
        marks=("chat_id",),
    ),
    Layout("Mooncake's trace", "timestamp", "input_length", "output_length", "ms", whole=True),
    Layout("LLMServingSim's log", "arrival_time", "input_toks", "output_toks", "s"),
    Layout("LLMServingSim's requests", "arrival_time_ns", "input_toks", "output_toks", "ns"),
    Layout("AdaSpec's arrival times", "Timestamp", None, None, "s", alone=True),
)
HOW_TO_STATE = "unit=ms,time=COLUMN,prompt=COLUMN,output=COLUMN"


def read_arrivals(path: Path, limit: int | None = None, stated: str = "") -> ReplayedArrivals:
    """Return the requests of a .jsonl or .csv trace, from its first arrival on, with what the file
    was taken for.

    `stated` is what the user says of the file, as `unit=ms`. Requests without a prompt or an answer, which traces keep
    of failures, are left out.
    """
    columns = from_options(str(path), ArrivalColumns, stated)
    reader = _TraceReader(path, columns)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            requests = list(islice(reader.requests(file), limit))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SkitError(
            f"cannot read the arrivals {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    if not requests:
        raise SkitError(f"the trace {path} holds no request: choose another file")
    first_s = min(request.at_s for request in requests)
    later = [request for request in requests if request.at_s - first_s >= columns.from_s]
    require(
        bool(later),
        f"the trace {path} ends before {columns.from_s:g} s: give an earlier from_s",
    )
    arrivals = from_zero(later)
    return replace(arrivals, reading=reader.reading(arrivals.requests))


class _TraceReader:
    """Reads one file, and remembers what it took it for."""

    def __init__(self, path: Path, stated: ArrivalColumns) -> None:
        self._path = path
        self._stated = stated
        self._layout: Layout | None = None
        self._without_length = 0
        self._has_dates = False

    def requests(self, lines: TextIO) -> Iterator[RequestArrival]:
        first = next(lines, "")
        is_json = self._path.suffix == ".jsonl" or first.lstrip().startswith("{")
        whole = chain([first], lines) if first else lines
        rows = self._json_rows(whole) if is_json else self._csv_rows(whole)
        for row, location in rows:
            request = self._request(row, location)
            if 0 in request[1:]:
                self._without_length += 1
            else:
                yield request

    def reading(self, requests: Sequence[RequestArrival]) -> FileReading:
        layout = self._layout
        assert layout is not None
        unit = self._stated.unit or layout.unit
        times = "dates" if self._has_dates else f"in {IN_WORDS[unit]}" if unit else ""
        origin = ", as stated" if self._stated.unit else ""
        lengths = "with lengths" if layout.prompt or layout.output else "without lengths"
        start = f", from {self._stated.from_s:g} s on" if self._stated.from_s else ""
        return FileReading(
            self._path.name,
            f"{layout.publisher}, {layout.time} {times}{origin}, {lengths}{start}",
            len(requests),
            left_out={WITHOUT_LENGTH: self._without_length},
            doubts=_doubts([request.at_s for request in requests], self._path.name),
        )

    def _json_rows(self, lines: Iterable[str]) -> Iterator[tuple[Mapping[str, str | float], str]]:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            location = f"{self._path}:{number}"
            try:
                row = json.loads(line, parse_int=whole_number)
            except (ValueError, RecursionError) as error:
                raise SkitError(f"{location}: not valid JSON ({error})") from error
            if not isinstance(row, dict):
                raise SkitError(
                    f"{location}: not a request with timestamp and lengths, but {type(row).__name__}"
                )
            self._layout = self._layout or self._layout_of(list(row))
            yield row, location

    def _csv_rows(self, lines: Iterable[str]) -> Iterator[tuple[Mapping[str, str | float], str]]:
        reader = csv.DictReader(lines)
        self._layout = self._layout_of([name.strip() for name in reader.fieldnames or ()])
        reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        yield from ((row, f"{self._path}:{reader.line_num}") for row in reader)

    def _layout_of(self, names: Sequence[str]) -> Layout:
        """Return the columns that the user named, or those of the format that has just these
        names.
        """
        stated = self._stated
        if stated.time:
            named = Layout(
                "a trace with the stated columns", stated.time, stated.prompt, stated.output, None
            )
            if missing := set(named.columns) - set(names):
                raise SkitError(
                    f"{self._path} has no column {' and no '.join(sorted(missing))}; it has {', '.join(names)}"
                )
            return named
        if stated.prompt or stated.output:
            raise SkitError(
                f"{self._path}: name the column of times too, as in {self._path}:{HOW_TO_STATE}"
            )
        layout = next((layout for layout in LAYOUTS if layout.fits(names)), None)
        if layout is None:
            layouts = "; ".join(", ".join(layout.columns) for layout in LAYOUTS)
            raise SkitError(
                f"{self._path} has the columns {', '.join(sorted(names)) or '(none)'}; known layouts: {layouts}; "
                f"others are stated, as in {self._path}:{HOW_TO_STATE}"
            )
        return layout

    def _request(self, row: Mapping[str, str | float], location: str) -> RequestArrival:
        layout = self._layout
        assert layout is not None
        try:
            at_s = self._seconds(row[layout.time], layout, location)
            lengths = [
                None if name is None else int(row[name]) for name in (layout.prompt, layout.output)
            ]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SkitError(
                f"{location}: not a request with {', '.join(layout.columns)} ({error})"
            ) from error
        if not isfinite(at_s) or any(length is not None and length < 0 for length in lengths):
            raise SkitError(f"{location}: times and lengths must be numbers from 0 up")
        return RequestArrival(at_s, *lengths)

    def _seconds(self, time: str | float, layout: Layout, location: str) -> float:
        """Return a number by its unit, and a date with a time of day as seconds since 1970, in UTC
        without a zone.
        """
        try:
            number = float(time)
        except ValueError:
            moment = datetime.fromisoformat(str(time))
            if self._stated.unit:
                raise SkitError(
                    f"{location}: unit={self._stated.unit}: {layout.time} holds dates; leave it out"
                ) from None
            self._has_dates = True
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        unit = self._stated.unit or layout.unit
        if unit is None:
            raise SkitError(
                f"{location}: {layout.time} holds numbers, whose unit {layout.publisher} does not tell: state it, as "
                f"in {self._path}:{'' if self._stated.time is None else f'time={layout.time},'}unit=ms"
            )
        if layout.whole and not self._stated.unit and number % 1:
            raise SkitError(
                f"{location}: {layout.time} is {number:g}, and times of {layout.publisher} are whole "
                f"{IN_WORDS[unit]}: state the unit, as in {self._path}:unit=s"
            )
        return number / PER_SECOND[unit]


def _doubts(at_s: Sequence[float], name: str) -> list[str]:
    """Return whether requests come so densely, or so rarely, that the unit of their times must be
    another.
    """
    remedy = f"if its times are in another unit, state it, as in {name}:unit="
    duration_s = at_s[-1]
    count = len(at_s)
    crowded = any(
        after - before < 1e-3 for before, after in zip(at_s, at_s[CROWD - 1 :], strict=False)
    )
    if crowded or (count >= FEW and duration_s * 1e3 < count - 1):
        return [f"more than a request per millisecond, {count:,} in {duration_s:.4g} s; {remedy}s."]
    if count > 1 and duration_s > SPARSE_S * (count - 1):
        return [
            f"a request every {duration_s / (count - 1):,.4g} s, {count:,} in {duration_s:,.6g} s; {remedy}ms."
        ]
    return []
