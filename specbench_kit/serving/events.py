"""Event logs of a simulation, as Parquet files and as a timeline."""

from collections.abc import Iterator
from math import inf
from pathlib import Path

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.timeline import REQUESTS, Span, Timeline
from specbench_kit.serving.result import SimulationResult

WHOLE_NUMBERS = (
    "client", "slo", "response", "batch", "new", "cached", "drafted", "submitted", "accepted", "committed",
    "prompt", "tokens", "size", "left_waiting", "server",
)  # fmt: skip
"""Columns that are stored as integers; the others are seconds."""
TABLES = ("rounds", "responses", "batches")


def parse_window(text: str) -> tuple[float, float]:
    """Return start and end of `FROM:TO` in simulated seconds."""
    first, _, last = text.partition(":")
    try:
        start_s = float(first)
        end_s = float(last)
    except ValueError:
        start_s = end_s = inf
    if not 0 <= start_s < end_s < inf:
        raise SkitError(f"--timeline takes FROM:TO in simulated seconds, as in 60:70, not '{text}'")
    return start_s, end_s


def write_events(folder: Path, name: str, result: SimulationResult) -> list[Path]:
    """Write `<name>-rounds.parquet`, `<name>-responses.parquet` and `<name>-batches.parquet`;
    return their paths.
    """
    import pyarrow
    import pyarrow.parquet

    paths = [folder / f"{name}-{table}.parquet" for table in TABLES]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, table in zip(
            paths, (result.rounds, result.responses, result.batches), strict=True
        ):
            columns = {
                key: values.astype(np.int64) if key in WHOLE_NUMBERS else values
                for key, values in table.items()
            }
            pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="zstd")
    except OSError as error:
        raise SkitError(f"cannot write events in {folder}: {error.strerror or error}") from error
    return paths


def timeline(result: SimulationResult, start_s: float, end_s: float) -> Timeline:
    """Return everything between two moments, with one lane per device and part of the system."""
    spans = Timeline()
    for span in sorted(_spans(result, start_s, end_s), key=lambda span: span.start_s):
        if span.start_s < end_s and span.end_s > start_s:
            spans.add(span)
    return spans


def _spans(result: SimulationResult, start_s: float, end_s: float) -> Iterator[Span]:
    rounds = result.rounds
    batches = result.batches
    began_s = rounds["sent_s"] - rounds["draft_s"]
    ended_s = np.minimum(rounds["answered_s"], result.end_s)
    for index in np.flatnonzero((began_s < end_s) & (ended_s > start_s)):
        yield from _round_spans(
            {name: float(column[index]) for name, column in rounds.items()}, result.end_s
        )
    for index in np.flatnonzero((batches["started_s"] < end_s) & (batches["ended_s"] > start_s)):
        members = rounds["client"][rounds["batch"] == index].astype(int)
        span_s = float(batches["started_s"][index]), float(batches["ended_s"][index])
        server = f"server {batches['server'][index] + 1:.0f}" if "server" in batches else "server"
        yield Span(server, "verify", *span_s, tuple(f"device {client}" for client in members))


def _round_spans(row: dict[str, float], end_s: float) -> Iterator[Span]:
    """Yield the phases of a round one after the other, cut at the end of the simulation."""
    device = f"device {row['client']:.0f}"
    names = ("sent_s", "arrived_s", "started_s", "ended_s", "answered_s")
    moments = [row["sent_s"] - row["draft_s"], *(row[name] for name in names)]
    moments = [min(moment, end_s) for moment in moments]
    phases = (
        ("edge", "draft"),
        ("link", "transfer"),
        ("server queue", "queue"),
        ("in verification", "verify"),
        ("link", "transfer"),
    )
    for (resource, label), from_s, to_s in zip(phases, moments, moments[1:], strict=False):
        yield Span(f"{resource}/{device}", label, from_s, to_s, (device,))
    outcome = f"{row['response']:.0f}: {row['committed']:.0f} of {row['submitted']:.0f}+1"
    yield Span(f"{REQUESTS}/{device}", f"round {outcome}", moments[0], moments[-1], (device,))
