"""Files of recorded links: columns that name their units, round trips alone, and traces of mahimahi
and Pensieve.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

import numpy as np

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.foreign_file import IN_WORDS, PER_SECOND, FileReading, StatedFile, Unit
from specbench_kit.core.specs import from_options
from specbench_kit.core.typed_json import whole_number
from specbench_kit.serving.arrays import Floats
from specbench_kit.serving.network import LinkTrace

PACKET_BYTES = 1500
"""Bytes of a packet, which mahimahi delivers at each of its times."""
LONGEST_MAHIMAHI_MS = 86_400_000
"""A day. Longer traces of mahimahi are times of another kind."""
MEGABIT_BYTES = 1e6 / 8
LONGEST_RTT_S = 10.0
"""Seconds beyond which a round trip is taken for another unit."""
SLOWEST_BYTES_PER_S = 100.0
"""Mean bytes per second below which a bandwidth is taken for another unit."""
LocatedRow = tuple[Sequence[str | float], str]
"""Values of a row, and its place in the file for messages."""


@dataclass(frozen=True, slots=True)
class StatedLink:
    """What a user states of a recorded link: whose format it is, or the unit of round trips and
    times without names.
    """

    format: Literal["mahimahi", "pensieve", "pings"] | None = None
    unit: Unit | None = None


class _Table(NamedTuple):
    """The rows of a file, the names of its columns if it has any, and whether commas separate
    them.
    """

    names: Sequence[str] | None
    rows: Iterator[LocatedRow]
    has_commas: bool = True


class _Column(NamedTuple):
    """The quantity of a column, and by what its numbers are multiplied to get it."""

    quantity: str
    factor: float


def _columns() -> dict[str, _Column]:
    """Return every name that a column may have."""
    columns = {
        f"{name}_{unit}": _Column(f"{name}_s", 1 / PER_SECOND[unit])
        for name in ("time", "rtt")
        for unit in IN_WORDS
    }
    for prefix, factor in (("", 1.0), ("k", 1e3), ("m", 1e6)):
        columns[f"{prefix}bit_per_s"] = columns[f"{prefix}bps"] = _Column("bytes_per_s", factor / 8)
    return columns | {"bytes_per_s": _Column("bytes_per_s", 1.0)}


COLUMNS = _columns()
QUANTITIES = ("time_s", "rtt_s", "bytes_per_s")
NAMES = "rtt_s or rtt_ms, and time_s, bytes_per_s or mbit_per_s beside it"


def read_link_trace(path: Path, stated: str = "") -> LinkTrace:
    """Return the recorded link in a file, with what it was taken for; `stated` is what the user
    says of it.

    Columns with names say what they are and in which unit, such as `rtt_ms`. Without names, one
    column holds round trips a second apart, as those of ping are, or the times of mahimahi's
    packets; two with a comma are times and round trips, and two with a space or a tab Pensieve's
    times and Mbit/s.
    """
    link = from_options(str(path), StatedLink, stated)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = _table(file, path)
            if table.names is None:
                return _without_names(list(table.rows), link, path, has_commas=table.has_commas)
            return _by_names(table.names, table.rows, link, path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SkitError(
            f"cannot read the link trace {path}: {getattr(error, 'strerror', None) or error}"
        ) from error


def parse_link_file(text: str) -> LinkTrace:
    """Return the recorded link that `FILE` or `FILE:format=mahimahi` names."""
    file = StatedFile.parse(text)
    return read_link_trace(file.path, file.options)


def _table(lines: TextIO, path: Path) -> _Table:
    """Return the rows of a file under the names of its columns."""
    if path.suffix == ".jsonl":
        rows = _json_rows(lines, path)
        first = next(rows, None)
        require(first is not None, f"the link trace {path} holds no row: it needs {NAMES}")
        assert first is not None
        names = list(first[0])
        # The first row says which columns there are; a later row that lacks one is an error.
        return _Table(
            names,
            (([row.get(name, "") for name in names], location) for row, location in (first, *rows)),
        )
    filled = [(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not filled:
        raise SkitError(f"the link trace {path} holds no row: it needs {NAMES}")
    has_commas = "," in filled[0][0]
    rows_of_cells = [(_cells(line, has_commas), location) for line, location in filled]
    first_cells = rows_of_cells[0][0]
    if any(map(_is_number, first_cells)):
        return _Table(None, iter(rows_of_cells), has_commas)
    return _Table(first_cells, iter(rows_of_cells[1:]), has_commas)


def _cells(line: str, has_commas: bool) -> list[str]:
    """Return the cells of a line, which commas separate, or else spaces and tabs."""
    return [cell.strip() for cell in next(csv.reader([line]))] if has_commas else line.split()


def _json_rows(lines: TextIO, path: Path) -> Iterator[tuple[Mapping[str, str | float], str]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line, parse_int=whole_number)
            except (ValueError, RecursionError) as error:
                raise SkitError(f"{path}:{number}: not valid JSON ({error})") from error
            require(isinstance(row, dict), f"{path}:{number}: not an object with {NAMES}")
            yield row, f"{path}:{number}"


def _by_names(
    names: Sequence[str], rows: Iterator[LocatedRow], stated: StatedLink, path: Path
) -> LinkTrace:
    """Return the link of a file whose columns have names."""
    if stated.format or stated.unit:
        raise SkitError(
            f"{path}: its columns name what they are, {', '.join(names)}: leave format= and unit= out"
        )
    known = {name: COLUMNS[name.lower()] for name in names if name.lower() in COLUMNS}
    quantities = [column.quantity for column in known.values()]
    if not {"rtt_s", "bytes_per_s"} & set(quantities) or len(set(quantities)) < len(quantities):
        raise SkitError(
            f"the link trace {path} has the columns {', '.join(names)}: name each once, as {NAMES}"
        )
    places = [names.index(name) for name in known]
    table = np.array([_numbers(row, places, list(known), location) for row, location in rows])
    require(len(table) > 0, f"the link trace {path} holds no row: it needs {NAMES}")
    values = {
        column.quantity: column.factor * numbers
        for column, numbers in zip(known.values(), table.T, strict=True)
    }
    left_out = [name for name in names if name not in known]
    beside = f", {', '.join(left_out)} not read" if left_out else ""
    return _trace(values, path, f"a recorded link by its columns {', '.join(known)}{beside}")


def _without_names(
    rows: Sequence[LocatedRow], stated: StatedLink, path: Path, *, has_commas: bool
) -> LinkTrace:
    """Return the link of a file whose columns have no names."""
    width = len(rows[0][0])
    names = QUANTITIES[:width] if width > 1 else ("rtt_s",)
    table = np.array([_numbers(row, range(width), names, location) for row, location in rows])
    has_spaces = width == 2 and not has_commas
    found = stated.format or (
        "pensieve" if has_spaces else "mahimahi" if _is_mahimahi(table, stated) else "pings"
    )
    if found != "pings" and stated.unit:
        raise SkitError(
            f"{path}: unit={stated.unit} is for round trips, and the units of {found}'s traces are known"
        )
    if (found, width) in {("mahimahi", 1), ("pensieve", 2)}:
        return _mahimahi(table[:, 0], path) if found == "mahimahi" else _pensieve(table, path)
    if found != "pings" or width > len(QUANTITIES):
        raise SkitError(
            f"{path} has {width} columns, which {found}'s traces have not: name its columns, {NAMES}"
        )
    return _pings(table, stated, path)


def _is_mahimahi(table: Floats, stated: StatedLink) -> bool:
    """Return True for whole numbers that never fall and go beyond what a round trip can be."""
    times = table[:, 0]
    return (
        table.shape[1] == 1
        and stated.unit is None
        and bool(
            (times % 1 == 0).all() and (np.diff(times) >= 0).all() and times[-1] > LONGEST_RTT_S
        )
    )


def _mahimahi(times_ms: Floats, path: Path) -> LinkTrace:
    """Return the link that delivers a packet at each of these milliseconds, and begins again after
    the last one.
    """
    last_ms = times_ms[-1]
    if (
        (times_ms % 1).any()
        or (np.diff(times_ms) < 0).any()
        or not 1 <= last_ms <= LONGEST_MAHIMAHI_MS
    ):
        raise SkitError(
            f"{path}: mahimahi's traces hold whole milliseconds from 0 on that never fall, up to a day"
        )
    # A packet at millisecond t has been carried during the millisecond that ends there.
    packets = np.bincount(np.maximum(times_ms.astype(np.int64) - 1, 0), minlength=int(last_ms))
    bytes_per_s = packets.astype(np.float64) * (PACKET_BYTES * 1e3)
    values = {"time_s": np.arange(len(packets), dtype=np.float64) / 1e3, "bytes_per_s": bytes_per_s}
    words = f"mahimahi's trace, a packet of {PACKET_BYTES} bytes at each millisecond; round trips are the link's own"
    return _trace(values, path, words, rows=len(times_ms), row_name="packets")


def _pensieve(table: Floats, path: Path) -> LinkTrace:
    values = {"time_s": table[:, 0], "bytes_per_s": table[:, 1] * MEGABIT_BYTES}
    return _trace(
        values, path, "Pensieve's trace, seconds and Mbit/s; round trips are the link's own"
    )


def _pings(table: Floats, stated: StatedLink, path: Path) -> LinkTrace:
    """Return the link of round trips alone, or of times, round trips and perhaps bytes per
    second.
    """
    unit = stated.unit or "s"
    names = QUANTITIES[: table.shape[1]] if table.shape[1] > 1 else ("rtt_s",)
    values = {
        name: column if name == "bytes_per_s" else column / PER_SECOND[unit]
        for name, column in zip(names, table.T, strict=True)
    }
    if stated.unit is None and stated.format is None and values["rtt_s"].max() > LONGEST_RTT_S:
        raise SkitError(
            f"{path} has no names of columns, and {values['rtt_s'].max():g} is no round trip in seconds: state what it "
            f"is, as {path}:unit=ms for round trips, {path}:format=mahimahi or {path}:format=pensieve, or name its "
            f"columns, {NAMES}"
        )
    words = {"time_s": "times", "rtt_s": "round trips", "bytes_per_s": "bytes per second"}
    listed = " and ".join(words[name] for name in names)
    origin = " as stated" if stated.unit else ", as it has no names of columns"
    apart = "" if "time_s" in names else ", a second apart"
    return _trace(values, path, f"{listed} in {IN_WORDS[unit]}{apart}{origin}")


def _trace(
    values: Mapping[str, Floats],
    path: Path,
    taken_for: str,
    rows: int | None = None,
    row_name: str = "rows",
) -> LinkTrace:
    """Return the trace of these quantities after checking them."""
    rtt_s = values.get("rtt_s")
    bytes_per_s = values.get("bytes_per_s")
    count = len(next(iter(values.values())))
    time_s = values.get("time_s", np.arange(count, dtype=np.float64))
    if (np.diff(time_s) <= 0).any() or (bytes_per_s is not None and not bytes_per_s.any()):
        raise SkitError(
            f"the link trace {path}: times must rise, and not every row may have 0 bytes per second"
        )
    trace = LinkTrace(time_s, rtt_s, bytes_per_s)
    reading = FileReading(path.name, taken_for, rows or count, row_name, doubts=_doubts(trace))
    return replace(trace, reading=reading)


def _doubts(trace: LinkTrace) -> list[str]:
    """Return which values must be in another unit than the one that was read."""
    doubts = []
    if trace.rtt_s is not None and (longest_s := float(trace.rtt_s.max())) > LONGEST_RTT_S:
        doubts.append(
            f"a round trip of {longest_s:,.6g} s; if round trips are in another unit, name it, as `rtt_ms`."
        )
    if trace.bytes_per_s is not None and (mean := trace.mean_bytes_per_s) < SLOWEST_BYTES_PER_S:
        doubts.append(
            f"{mean:,.3g} bytes per second on average; if it is another unit, name it, as `mbit_per_s`."
        )
    return doubts


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(
    row: Sequence[str | float], places: Sequence[int], names: Sequence[str], location: str
) -> list[float]:
    try:
        numbers = [float(row[place]) for place in places]
    except (IndexError, TypeError, ValueError) as error:
        raise SkitError(f"{location}: not a row with {', '.join(names)} ({error})") from error
    if not all(0 <= number < inf for number in numbers):
        raise SkitError(f"{location}: {', '.join(names)} must be numbers from 0 up")
    return numbers
