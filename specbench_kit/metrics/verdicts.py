"""Verdicts on a ratio of times, and which methods may be called the fastest."""

from collections.abc import Sequence

from specbench_kit.metrics.losslessness import OutputCounts
from specbench_kit.metrics.run_summary import RunSummary
from specbench_kit.metrics.statistics import FEWEST_UNITS, NO_WIDTH

FASTER = "faster"
SLOWER = "slower"
NO_DIFFERENCE = "no difference shown"
TOO_FEW = "too few prompts to tell"
BY_PROMPT = "faster on a typical prompt or in all, and slower in the other"
NOT_LOSSLESS = "faster, but not lossless"
UNCHECKED = "faster, but its outputs were not checked"
SAMPLING_UNDECIDED = "faster, but too few tokens were drawn to judge its distribution"


def verdict(value: float | None, bounds: Sequence[float] | None, units: int) -> str:
    """Return what a ratio of speeds over a number of units shows: an interval that contains 1 shows
    no difference.

    `bounds` are None if every unit has the same ratio, too.
    """
    if value is None or units < FEWEST_UNITS:
        return TOO_FEW
    low, high = bounds or (value * (1 - NO_WIDTH), value * (1 + NO_WIDTH))
    if low > 1:
        return FASTER
    return SLOWER if high < 1 else NO_DIFFERENCE


def may_win(summary: RunSummary) -> bool | None:
    """Return True if a run's outputs were checked and passed: token by token, or by the check of
    its sampling.

    None if nothing was checked: such runs may be called faster than each other only.
    """
    lossless = summary.lossless.lossless if summary.lossless else None
    consistent = summary.sampling.consistent if summary.sampling else None
    results = [result for result in (lossless, consistent) if result is not None]
    return all(results) if results else None


def is_undecided(summary: RunSummary) -> bool:
    """Return True if a run's sampling was checked, but too few tokens were drawn to tell, and no
    check failed.
    """
    return (
        summary.sampling is not None
        and summary.sampling.consistent is None
        and may_win(summary) is None
    )


def joint_check(
    summaries: Sequence[RunSummary], outputs: OutputCounts | None
) -> tuple[bool | None, bool]:
    """Return `may_win` and `is_undecided` of a method with several runs, whose `outputs` a table
    has compared anew.
    """
    checks = [may_win(summary) for summary in summaries]
    if False in checks or (outputs is not None and outputs.errors):
        return False, False
    if None not in checks:
        return True, False
    return None, all(may_win(summary) or is_undecided(summary) for summary in summaries)


def as_allowed(
    verdict: str, allowed: bool | None, rival: bool | None = True, undecided: bool = False
) -> str:
    """Return the verdict, qualified if it names a winner that may not win.

    `allowed` is what `may_win` returns for the method, `rival` what it returns for the other side; `undecided` is what
    `is_undecided` returns for the method.
    """
    if verdict != FASTER or allowed:
        return verdict
    if allowed is None and undecided:
        return SAMPLING_UNDECIDED
    if allowed is None:
        return verdict if rival is None else UNCHECKED
    return NOT_LOSSLESS


DOUBTS = {
    NO_DIFFERENCE: NO_DIFFERENCE,
    TOO_FEW: TOO_FEW,
    BY_PROMPT: BY_PROMPT,
    NOT_LOSSLESS: "which does not count, because its outputs are not lossless",
    UNCHECKED: "with unchecked outputs",
    SAMPLING_UNDECIDED: "with a distribution that is undecided, because too few tokens were drawn",
}
"""What follows a speedup over autoregressive decoding that shows no gain, by its verdict."""
