"""The draft model and the draft length that are best by goodput, by price or by energy, as ConfigSpec
(Li et al. 2026) selects them from profiles.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from specbench_kit.core.errors import require
from specbench_kit.serving.round_sources import acceptance_rate_of
from specbench_kit.studies.reproduction.edge_rounds import tree_s
from specbench_kit.traces.trace import TraceFile

CONTEXT = 256
"""Cached tokens at which a draft step is timed."""


class Round(NamedTuple):
    """A round of one device: its expected committed tokens, its drafted tokens, the seconds of
    drafting them, and the seconds from the last of them to the verdict.
    """

    tokens: float
    length: int
    draft_s: float
    answer_s: float


OBJECTIVES: Mapping[str, Callable[[Round], float]] = {
    "goodput": lambda round_: round_.tokens / (round_.draft_s + round_.answer_s),
    # A server is paid for each token that it verifies; its own token comes with them.
    "cost": lambda round_: round_.tokens / round_.length,
    # A device draws one power while it drafts, so that joules are in proportion to seconds.
    "energy": lambda round_: round_.tokens / round_.draft_s,
}
"""What is maximised, by name: tokens per second, per verified token, and per second of drafting."""


class Selection(NamedTuple):
    """The place of the best draft model among those given, and its best length."""

    drafter: int
    length: int


def expected_tokens(acceptance: float, length: int) -> float:
    """Return the expected committed tokens of a round, the target's own included."""
    return sum(acceptance**position for position in range(length + 1))


def select(
    objective: str,
    tokens: Sequence[Callable[[int], float]],
    steps_s: Sequence[float],
    answer_s: float,
    lengths: Sequence[int],
) -> Selection:
    """Return the draft model and the length with the most of an objective; of equals the first.

    `tokens[i](k)` are the expected tokens of a round in which model i drafts k, `steps_s[i]` the
    seconds of one of its forwards.
    """
    require(objective in OBJECTIVES, f"the objective is one of {', '.join(OBJECTIVES)}")

    def value(choice: Selection) -> float:
        drafter, length = choice
        round_ = Round(tokens[drafter](length), length, length * steps_s[drafter], answer_s)
        return OBJECTIVES[objective](round_)

    return max((Selection(*choice) for choice in product(range(len(steps_s)), lengths)), key=value)


def step_s(model: str, device: str, software: str) -> float:
    """Return the seconds in which a device drafts one token, by its data sheet."""
    return tree_s(model, device, software, levels=1, beams=1, context=CONTEXT)


@dataclass(frozen=True, kw_only=True)
class ChoiceOnDevice:
    """The draft models of a device, in the order of their size, and the lengths that they may
    draft.

    `acceptances` are the shares of drafts of `of_length` tokens that are accepted.
    """

    objective: str
    device: str
    software: str
    models: Sequence[str]
    acceptances: Sequence[float]
    of_length: int
    answer_s: float
    shortest: int
    longest: int

    def selection(self) -> Selection:
        """Return the best model and length, with steps as long as the device's data sheet says."""
        length = self.of_length
        rates = [acceptance_rate_of(share * length, length) for share in self.acceptances]
        return select(
            self.objective,
            [partial(expected_tokens, rate) for rate in rates],
            [step_s(model, self.device, self.software) for model in self.models],
            self.answer_s,
            range(self.shortest, self.longest + 1),
        )


def selected_drafter(**inputs: Any) -> float:
    """Return where the selected model stands among those given by size: 0 the smallest, 1 the
    largest.
    """
    choice = ChoiceOnDevice(**inputs)
    return choice.selection().drafter / (len(choice.models) - 1)


def selected_length(**inputs: Any) -> float:
    """Return the draft length of the selection on a device."""
    return ChoiceOnDevice(**inputs).selection().length


def selected_length_on_trace(
    objective: str,
    trace: str,
    model: str,
    device: str,
    software: str,
    answer_s: float,
    shortest: int,
) -> float:
    """Return the length that is best for the pair of a recorded trace, up to that of its drafts."""
    survival = _survival(TraceFile(Path(trace)))
    selection = select(
        objective,
        [lambda length: 1 + sum(survival[:length])],
        [step_s(model, device, software)],
        answer_s,
        range(shortest, len(survival) + 1),
    )
    return selection.length


def _survival(trace: TraceFile) -> list[float]:
    """Return how often the first token, the first two, and so on of a draft are all accepted, over
    the rounds of fixed drafts that begin at every place of every answer.
    """
    longest = trace.header.max_draft
    reached = [0] * longest
    offsets = 0
    for request in trace:
        answer = [*request.output_ids, *request.continuation]
        for offset in range(len(request.output_ids)):
            offsets += 1
            for position, token in enumerate(request.drafted[offset]):
                if offset + position >= len(answer) or token != answer[offset + position]:
                    break
                reached[position] += 1
    return [count / offsets for count in reached]
