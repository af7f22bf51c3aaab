"""The course of a simulation: draft length, batch size, queue, load and throughput in equal spans of time."""

import numpy as np

from specbench_kit.serving.arrays import Floats
from specbench_kit.serving.result import SimulationResult, Table

SPANS = 60
TimeSeries = dict[str, list[float | None]]


def time_series(result: SimulationResult) -> TimeSeries:
    """Return one value per span and quantity, None if nothing began in it; `at_s` is the middle of each span.

    The quantities are tokens submitted to a verification, requests in a batch, requests left waiting behind it, the
    share of time in which the server is busy, and committed tokens per second.
    """
    edges = np.linspace(0.0, result.end_s, SPANS + 1)
    batches, rounds = result.batches, result.rounds
    span_s = result.end_s / SPANS
    started_s, verified = batches["started_s"], np.isfinite(rounds["started_s"])
    answered = rounds["answered_s"] < result.end_s
    tokens = _sums(edges, rounds["answered_s"][answered], rounds["committed"][answered])
    return {
        "at_s": ((edges[1:] + edges[:-1]) / 2).tolist(),
        "draft_length": _means(edges, rounds["started_s"][verified], rounds["submitted"][verified]),
        "batch_size": _means(edges, started_s, batches["size"]),
        "left_waiting": _means(edges, started_s, batches["left_waiting"]),
        "load": (_busy_s(edges, batches) / span_s).tolist(),
        "tokens_per_s": (tokens / span_s).tolist(),
    }


def _sums(edges: Floats, at_s: Floats, values: Floats) -> Floats:
    sums: Floats = np.histogram(at_s, edges, weights=values)[0].astype(np.float64)
    return sums


def _means(edges: Floats, at_s: Floats, values: Floats) -> list[float | None]:
    sums, counts = _sums(edges, at_s, values), np.histogram(at_s, edges)[0]
    return [total / count if count else None for total, count in zip(sums.tolist(), counts.tolist(), strict=True)]


def _busy_s(edges: Floats, batches: Table) -> Floats:
    """Return the seconds of batches in each span."""
    if not len(batches["started_s"]):
        return np.zeros(len(edges) - 1)
    # Busy time up to each edge: the batches begun by then in full, less what the last of them still has to run.
    total_s = np.concatenate([[0.0], np.cumsum(batches["ended_s"] - batches["started_s"])])
    begun = np.searchsorted(batches["started_s"], edges, side="right")
    remaining_s = np.where(begun > 0, np.maximum(0.0, batches["ended_s"][begun - 1] - edges), 0.0)
    busy_s: Floats = np.diff(total_s[begun] - remaining_s)
    return busy_s
