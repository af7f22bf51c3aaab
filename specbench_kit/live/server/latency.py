"""What a server expects of its own time."""

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.latency import InteractionModel, LatencyModel
from specbench_kit.models.runner import Append, Runner
from specbench_kit.profilers import loading

CACHED = 128
SHAPES = ((1, 1), (9, 1), (9, 4), (33, 1))
"""New tokens and requests of the forwards that are timed where there is no profile."""
TIMES = 5


def expected_latency(profile: str | None, model_hash: str, runner: Runner) -> tuple[LatencyModel, str]:
    """The latency model of a profile, named or measured on this machine, else a rough one; and where it is from."""
    if profile is not None:
        return loading.load(profile, model_hash=model_hash).latency(), profile
    found = loading.find_measured(model_hash, "verifier", runner.device)
    if found is not None:
        return found.latency(), found.name
    return _rough(runner), "a few forwards at the start; skit profile-verifier measures a profile"


def _rough(runner: Runner) -> LatencyModel:
    """Seconds per forward and per new token, by a line through a few forwards."""
    cached = min(CACHED, runner.capacity // 2)
    slots = [runner.acquire() for _ in range(min(4, runner.executor.slots))]
    for slot in slots:
        runner.forward([Append(slot, [1] * cached)])
        runner.commit(slot, range(cached))
    points = [
        (new * len(slots[:requests]), _seconds(runner, slots[:requests], min(new, cached))) for new, requests in SHAPES
    ]
    for slot in slots:
        runner.release(slot)
    (few, least_s), (many, most_s) = points[0], max(points)
    per_token_s = max(0.0, (most_s - least_s) / (many - few))
    return InteractionModel(per_token_s, 0.0, 0.0, max(1e-6, least_s - few * per_token_s))


def _seconds(runner: Runner, slots: list[int], new: int) -> float:
    """The shortest of a few times."""
    found = []
    for _ in range(TIMES):
        began_s = monotonic_s()
        runner.forward([Append(slot, [1] * new, keep=new) for slot in slots])
        found.append(monotonic_s() - began_s)
        for slot in slots:
            runner.commit(slot, [])
    return min(found)
