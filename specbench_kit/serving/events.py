"""What happened in a simulation, as Parquet files and as a timeline."""

from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.timeline import REQUESTS, Span, Timeline
from specbench_kit.serving.result import Column, SimulationResult

WHOLE = ("client", "slo", "response", "batch", "new", "cached", "drafted", "submitted", "accepted", "committed",
         "prompt", "tokens", "size", "left_waiting")  # fmt: skip
"""Columns of whole numbers; the others are seconds."""
TABLES = ("rounds", "responses", "batches")


def parse_window(text: str) -> tuple[float, float]:
    """`FROM:TO` in simulated seconds."""
    first, _, last = text.partition(":")
    try:
        start_s, end_s = float(first), float(last)
    except ValueError:
        start_s = end_s = inf
    if not 0 <= start_s < end_s < inf:
        raise SkitError(f"--timeline takes FROM:TO in simulated seconds, as in 60:70, not '{text}'")
    return start_s, end_s


def write_events(folder: Path, name: str, result: SimulationResult) -> list[Path]:
    """`<name>-rounds.parquet`, and the same of responses and batches."""
    import pyarrow
    import pyarrow.parquet

    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for table in TABLES:
            path = folder / f"{name}-{table}.parquet"
            pyarrow.parquet.write_table(pyarrow.table(_columns(getattr(result, table))), path, compression="zstd")
            written.append(path)
    except OSError as error:
        raise SkitError(f"cannot write events in {folder}: {error.strerror or error}") from error
    return written


def _columns(table: Mapping[str, Column]) -> dict[str, Any]:
    return {name: values.astype(np.int64) if name in WHOLE else values for name, values in table.items()}


def timeline(result: SimulationResult, start_s: float, end_s: float) -> Timeline:
    """Everything that goes on between two moments, every device's part by itself."""
    found = Timeline()
    for span in sorted(_spans(result, start_s, end_s), key=lambda one: one.start_s):
        if span.start_s < end_s and span.end_s > start_s:
            found.add(span)
    return found


def _spans(result: SimulationResult, start_s: float, end_s: float) -> Iterator[Span]:
    rounds, batches = result.rounds, result.batches
    began_s = rounds["sent_s"] - rounds["draft_s"]
    ended_s = np.minimum(rounds["answered_s"], result.end_s)
    for place in np.flatnonzero((began_s < end_s) & (ended_s > start_s)):
        yield from _round({name: float(column[place]) for name, column in rounds.items()}, result.end_s)
    for place in np.flatnonzero((batches["started_s"] < end_s) & (batches["ended_s"] > start_s)):
        one = {name: float(column[place]) for name, column in batches.items()}
        members = rounds["client"][rounds["batch"] == place].astype(int)
        yield Span("server", "verify", one["started_s"], one["ended_s"], tuple(f"device {n}" for n in members))


def _round(one: Mapping[str, float], end_s: float) -> Iterator[Span]:
    """What a round waits for, one thing after the other; what the end cut short stops there."""
    device = f"device {one['client']:.0f}"
    moments = [one["sent_s"] - one["draft_s"], one["sent_s"], one["arrived_s"], one["started_s"], one["ended_s"]]
    moments = [min(at, end_s) for at in (*moments, one["answered_s"])]
    parts = (("edge", "draft"), ("link", "transfer"), ("server queue", "queue"), ("in verification", "verify"))
    for (resource, label), first_s, last_s in zip((*parts, ("link", "transfer")), moments, moments[1:], strict=False):
        yield Span(f"{resource}/{device}", label, first_s, last_s, (device,))
    yield Span(f"{REQUESTS}/{device}", f"round {_outcome(one)}", moments[0], moments[-1], (device,))


def _outcome(one: Mapping[str, float]) -> str:
    return f"{one['response']:.0f}: {one['committed']:.0f} of {one['submitted']:.0f}+1"
