"""How a run goes: draft length, batch size, queue, load and throughput in equal spans of time."""

import numpy as np

from specbench_kit.serving.result import Column, SimulationResult

SPANS = 60


def over_time(result: SimulationResult) -> dict[str, list[float | None]]:
    """A value for each span, None where nothing began in it; `at_s` is its middle.

    Tokens sent in a verification, requests in a batch, requests left waiting behind it, share of the time in which the
    server is busy, and committed tokens per second.
    """
    edges = np.linspace(0.0, result.end_s, SPANS + 1)
    batches, rounds = result.batches, result.rounds
    span_s = result.end_s / SPANS
    begun, verified = batches["started_s"], np.isfinite(rounds["started_s"])
    answered = rounds["answered_s"] < result.end_s
    tokens = _sums(edges, rounds["answered_s"][answered], rounds["committed"][answered])
    return {
        "at_s": ((edges[1:] + edges[:-1]) / 2).tolist(),
        "draft_length": _means(edges, rounds["started_s"][verified], rounds["submitted"][verified]),
        "batch_size": _means(edges, begun, batches["size"]),
        "left_waiting": _means(edges, begun, batches["left_waiting"]),
        "load": (_busy_s(edges, batches) / span_s).tolist(),
        "tokens_per_s": (tokens / span_s).tolist(),
    }


def _sums(edges: Column, at_s: Column, values: Column) -> Column:
    sums: Column = np.histogram(at_s, edges, weights=values)[0].astype(np.float64)
    return sums


def _means(edges: Column, at_s: Column, values: Column) -> list[float | None]:
    sums, counts = _sums(edges, at_s, values), np.histogram(at_s, edges)[0]
    return [total / count if count else None for total, count in zip(sums.tolist(), counts.tolist(), strict=True)]


def _busy_s(edges: Column, batches: dict[str, Column]) -> Column:
    """Seconds of batches in each span: what they have taken by its end, less what they had by its beginning."""
    if not len(batches["started_s"]):
        return np.zeros(len(edges) - 1)
    done_s = np.concatenate([[0.0], np.cumsum(batches["ended_s"] - batches["started_s"])])
    place = np.searchsorted(batches["started_s"], edges, side="right")
    running_s = np.where(place > 0, np.maximum(0.0, batches["ended_s"][place - 1] - edges), 0.0)
    busy: Column = np.diff(done_s[place] - running_s)
    return busy
