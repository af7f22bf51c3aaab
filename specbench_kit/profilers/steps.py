"""What the steps of decoding take on this machine: the timing that a replay goes by."""

from collections.abc import Sequence
from statistics import quantiles
from typing import NamedTuple

from specbench_kit.models.runner import Append, Runner
from specbench_kit.predictors.latency import stopwatch

ROUNDS = 30
"""Of each length that are timed."""
TRIALS = 200
"""Tokens whose statistics are timed."""


class StepTimes(NamedTuple):
    """Seconds of a draft step, and of verifying 0, 1, ..., max_draft tokens; `timed` is all that was timed, by step."""

    draft_s: float
    verify_s: tuple[float, ...]
    timed: Sequence[Sequence[float]]


def measure_steps(target: Runner, draft: Runner, prefix: Sequence[int], max_draft: int) -> StepTimes:
    """What the steps take after `prefix`.

    Draft steps and verifications take turns as in decoding, and so do the lengths: each finds in the caches what the
    other left there, and what disturbs the machine hits all lengths alike. As it only ever adds time, the lower
    quartile counts.
    """
    steps = {runner: _Steps(runner, prefix) for runner in (draft, target)}
    draft_s: list[float] = []
    verify_s: list[list[float]] = [[] for _ in range(max_draft + 1)]
    for _ in range(ROUNDS):
        for length, seconds in enumerate(verify_s):
            draft_s += [steps[draft].time(1) for _ in range(length)]
            seconds.append(steps[target].time(1 + length))
    for each in steps.values():
        each.end()
    return StepTimes(_lower_quartile(draft_s), tuple(map(_lower_quartile, verify_s)), [draft_s, *verify_s])


def _lower_quartile(seconds: Sequence[float]) -> float:
    return quantiles(seconds, n=4)[0]


class _Steps:
    """Forwards of a model after a prefix, each as if it were the first."""

    def __init__(self, runner: Runner, prefix: Sequence[int]) -> None:
        self._runner, self._prefix, self._slot = runner, prefix, runner.acquire()
        runner.forward([Append(self._slot, prefix)])
        runner.commit(self._slot, range(len(prefix)))

    def time(self, count: int) -> float:
        """Seconds of a forward of that many tokens."""
        tokens = [self._prefix[place % len(self._prefix)] for place in range(count)]
        elapsed_s = stopwatch()
        self._runner.forward([Append(self._slot, tokens, keep=count)]).argmax()
        seconds = elapsed_s()
        self._runner.commit(self._slot, [])
        return seconds

    def end(self) -> None:
        self._runner.release(self._slot)


def measure_statistics(vocabulary: int, device: str) -> float:
    """Seconds of a drafted token's statistics over a vocabulary, as a stop rule asks for them."""
    import torch

    from specbench_kit.decoding.distributions import DraftForward
    from specbench_kit.decoding.sampling import Sampler
    from specbench_kit.models.executors.base import Forward

    logits = torch.randn(1, vocabulary, device=device)
    seconds = []
    for _ in range(TRIALS):
        elapsed_s = stopwatch()
        DraftForward(Forward([logits]), Sampler()).stats(0, 0)
        seconds.append(elapsed_s())
    return _lower_quartile(seconds)
