"""The sentence of every study that measures the time between tokens with speculation and without
it: from which load on speculation makes its 99th percentile longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench_kit.reports.writing.formatting import seconds
from specbench_kit.serving.figures import Interval, is_higher


@dataclass(frozen=True, slots=True)
class TailPair:
    """A load in words, and the 99th percentile of the time between tokens under it in seconds, with
    drafts and without.
    """

    load: str
    drafting: Interval
    plain: Interval

    @property
    def is_longer(self) -> bool | None:
        """Whether drafting is shown to make it longer; None if no difference is shown."""
        if is_higher(self.drafting, self.plain):
            return True
        return False if is_higher(self.plain, self.drafting) else None


def tail_verdict(pairs: Sequence[TailPair], series: str, plain: str, lower: str = "fewer") -> str:
    """Return from which load on a series has longer gaps than plain decoding; `pairs` stand from
    the lowest load to the highest, and `lower` says what lower loads are called.
    """
    hurting = [pair for pair in pairs if pair.is_longer]
    others = [number for number, pair in enumerate(pairs) if pair.is_longer is not True]
    begins = others[-1] + 1 if others else 0
    last = pairs[-1]
    if not hurting:
        said = (
            "speculation does not make it longer"
            if last.is_longer is False
            else "speculation is not shown to make it longer"
        )
        return (
            f"up to {last.load} {said}; there {series} has {seconds(last.drafting.mean)} and "
            f"{plain} {seconds(last.plain.mean)}"
        )
    if begins == len(pairs):
        loads = ", ".join(pair.load for pair in hurting)
        return f"{series} hurts the tail with {loads}, and is not shown to with {last.load}"
    first = pairs[begins]
    numbers = f"{seconds(first.drafting.mean)} against {seconds(first.plain.mean)} of {plain}"
    if len(pairs) == 1:
        return f"{series} hurts the tail with {first.load}: {numbers}"
    if not begins:
        return f"{series} hurts the tail at every load from {first.load} on, with {numbers}"
    before = any(pair.is_longer for pair in pairs[:begins])
    below = f"with some {lower} too" if before else f"with {lower} it is not shown to"
    return f"from {first.load} on {series} hurts the tail, with {numbers}; {below}"
