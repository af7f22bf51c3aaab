"""The verification times that the server's scheduler plans with."""

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.latency import InteractionModel, LatencyModel
from specbench_kit.models.runner import Append, Runner
from specbench_kit.profilers import loading

CACHED = 128
"""Tokens in KV before the timed forwards."""
SHAPES = ((1, 1), (9, 1), (9, 4), (33, 1))
"""New tokens per request, and requests, of the forwards that are timed if there is no profile."""
REPETITIONS = 5
"""Timings of each shape, of which the shortest counts."""


def expected_latency(profile: str | None, model_hash: str, runner: Runner) -> tuple[LatencyModel, str]:
    """Return the latency model that the scheduler plans with, and where it comes from.

    It is that of the named profile, else of one measured on this machine, else a rough one of a few forwards.
    """
    if profile is not None:
        return loading.load(profile, model_hash=model_hash).latency(), profile
    measured = loading.find_measured(model_hash, "verifier", runner.device)
    if measured is not None:
        return measured.latency(), measured.name
    return _time_forwards(runner), "a few forwards at the start; skit profile-verifier measures a profile"


def _time_forwards(runner: Runner) -> LatencyModel:
    """Return a line, with seconds per forward and per new token, through the times of a few forwards."""
    cached = min(CACHED, runner.capacity // 2)
    slots = [runner.acquire() for _ in range(min(4, runner.executor.slots))]
    for slot in slots:
        runner.forward([Append(slot, [1] * cached)])
        runner.commit(slot, range(cached))
    points = []
    for tokens, requests in SHAPES:
        times = []
        for _ in range(REPETITIONS):
            began_s = monotonic_s()
            new = min(tokens, cached)
            runner.forward([Append(slot, [1] * new, keep=new) for slot in slots[:requests]])
            times.append(monotonic_s() - began_s)
            for slot in slots[:requests]:
                runner.commit(slot, [])
        points.append((tokens * len(slots[:requests]), min(times)))
    for slot in slots:
        runner.release(slot)
    (fewest, shortest_s), (largest, longest_s) = points[0], max(points)
    per_token_s = max(0.0, (longest_s - shortest_s) / (largest - fewest))
    return InteractionModel(per_token_s, 0.0, 0.0, max(1e-6, shortest_s - fewest * per_token_s))
