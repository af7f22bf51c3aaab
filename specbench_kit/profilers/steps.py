"""The durations of decoding steps on this machine, which a replay of a trace charges."""

from collections.abc import Sequence
from statistics import quantiles
from typing import NamedTuple

from specbench_kit.models.runner import Append, Runner
from specbench_kit.predictors.latency import stopwatch

ROUNDS = 30
"""Timed repetitions of each length, unless they take too long."""
FEWEST_ROUNDS = 8
LONGEST_S = 60.0
"""The seconds after which no further repetition begins: a model of some billions of weights would
take many minutes.
"""
TRIALS = 200
"""Tokens whose statistics are timed."""


class StepTimes(NamedTuple):
    """Seconds of a draft step, and of verifying 0, 1, ..., max_draft tokens.

    `timed` are all timings, first of the draft step, then of each verification.
    """

    draft_s: float
    verify_s: tuple[float, ...]
    timed: Sequence[Sequence[float]]


def measure_steps(
    target: Runner, draft: Runner | None, prefix: Sequence[int], max_draft: int
) -> StepTimes:
    """Return the durations of the steps after the tokens `prefix`; without a draft model, drafting
    takes 0 s.

    Draft steps and verifications alternate as in decoding, and so do the lengths: each step finds
    the processor's caches as the other model leaves them, and a disturbance of the machine hits all
    lengths alike.
    """
    steps = {runner: _StepTimer(runner, prefix) for runner in (draft, target) if runner is not None}
    draft_s: list[float] = []
    verify_s: list[list[float]] = [[] for _ in range(max_draft + 1)]
    elapsed_s = stopwatch()
    for done in range(ROUNDS):
        if done >= FEWEST_ROUNDS and elapsed_s() > LONGEST_S:
            break
        for length, seconds in enumerate(verify_s):
            if draft is not None:
                draft_s += [steps[draft].time(1) for _ in range(length)]
            seconds.append(steps[target].time(1 + length))
    for timer in steps.values():
        timer.end()
    draft_step_s, timed = (_lower_quartile(draft_s), [draft_s]) if draft_s else (0.0, [])
    return StepTimes(draft_step_s, tuple(map(_lower_quartile, verify_s)), [*timed, *verify_s])


def _lower_quartile(seconds: Sequence[float]) -> float:
    """Return the lower quartile, which stands for a quiet machine, since a disturbance only ever
    adds time.
    """
    return quantiles(seconds, n=4)[0]


class _StepTimer:
    """Times forwards of a model after a prefix, each as if it were the first."""

    def __init__(self, runner: Runner, prefix: Sequence[int]) -> None:
        self._runner = runner
        self._prefix = prefix
        self._slot = runner.acquire()
        runner.forward([Append(self._slot, prefix)])
        runner.commit(self._slot, range(len(prefix)))

    def time(self, count: int) -> float:
        """Return the seconds of a forward of `count` tokens."""
        tokens = [self._prefix[index % len(self._prefix)] for index in range(count)]
        elapsed_s = stopwatch()
        self._runner.forward([Append(self._slot, tokens, keep=count)]).argmax()
        seconds = elapsed_s()
        self._runner.commit(self._slot, [])
        return seconds

    def end(self) -> None:
        self._runner.release(self._slot)


def measure_statistics(vocabulary: int, device: str) -> float:
    """Return the seconds of a drafted token's statistics over a vocabulary, as a stop rule asks for
    them.
    """
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
