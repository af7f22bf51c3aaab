"""Where a response's rounds come from: recorded requests, or the odds that a draft's tokens are accepted."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple, Protocol

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.serving.confidence import ConfidenceModel
from specbench_kit.serving.counter_rng import Floats, Integers

BISECTIONS = 40


def even_chance(accepted: float, drafted: float) -> float:
    """The chance of each of so many tokens, where those before it were accepted, at which a mean of them is."""
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        brings = middle * (1 - middle**drafted) / (1 - middle)
        low, high = (middle, high) if brings < accepted else (low, middle)
    return (low + high) / 2


class SimulatedRound(NamedTuple):
    """One round of a device: `steps` forwards of the draft model, tokens sent, and how many the target takes.

    `proactive` steps go on while the round is verified.
    """

    steps: int
    submitted: int
    accepted: int
    proactive: int = 0


class RoundArrays(NamedTuple):
    """A round of each of several devices: the fields of `SimulatedRound`, each an array."""

    steps: Integers
    submitted: Integers
    accepted: Integers
    proactive: Integers


class ResponseStarts(NamedTuple):
    """Responses: their lengths in tokens, 0 where the source does not know them, and where their rounds begin."""

    prompt_tokens: Integers
    output_tokens: Integers
    place: Integers


class RoundSource(Protocol):
    """A source of rounds. What a scheduler may know of it beforehand is `typical`, never a round's outcome."""

    @property
    def typical(self) -> "TypicalRound":
        """Averages over its rounds."""

    def begin(self, chance: Floats) -> ResponseStarts:
        """A response for each random number."""

    def rounds(self, place: Integers, chance: Floats) -> tuple[RoundArrays, Integers]:
        """The next round of each response, with a random number for it, and the place of the one after it."""


class TypicalRound(NamedTuple):
    """Averages per round: forwards of the draft model, tokens sent, and the share of these that is accepted.

    `longest` is the most that is sent. `rates` are the chances of a token at each place whose forerunners were
    accepted, where they are known; `spread` is how much single tokens differ from them, and `overconfidence` how much
    higher the draft model puts them (see `ConfidenceModel`).
    """

    steps: float
    submitted: float
    acceptance: float
    longest: int
    rates: tuple[float, ...] = ()
    spread: float = 0.0
    overconfidence: float = 1.0

    @property
    def committed(self) -> float:
        """Tokens that a round brings."""
        return 1 + self.submitted * self.acceptance

    @property
    def surety(self) -> ConfidenceModel:
        """Of single tokens."""
        return ConfidenceModel(self.rates or (self.chance,) * self.longest, self.spread, self.overconfidence)

    @property
    def chance(self) -> float:
        """Of a token whose forerunners were accepted, as if it were the same at every place of a draft."""
        return even_chance(self.submitted * self.acceptance, self.submitted)


@dataclass(frozen=True, slots=True)
class StopRuleOdds:
    """A stop rule: the share of right tokens that it lets pass, and of wrong ones that it stops."""

    recall: float
    specificity: float


@dataclass(frozen=True)
class PositionRates:
    """Chains whose token at position i is accepted with `rates[i]` if all before it were.

    With a predictor, drafting ends at the first token that it stops, which is drafted and not sent. `spread` is how
    much surer the draft model is of some tokens than of others, and `overconfidence` how much surer than is right, as
    `ConfidenceModel` has them.
    """

    rates: tuple[float, ...]
    predictor: StopRuleOdds | None = None
    spread: float = 0.0
    overconfidence: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.spread <= 1:
            raise SkitError(f"spread must lie in 0..1, not {self.spread:g}")
        if self.overconfidence <= 0:
            raise SkitError(f"overconfidence must be above 0, not {self.overconfidence:g}")
        if not all(0 <= rate <= 1 for rate in self.rates):
            raise SkitError(f"acceptance rates must lie in 0..1: {', '.join(map(str, self.rates))}")
        chances = self.predictor or StopRuleOdds(1, 0)
        if not (0 <= chances.recall <= 1 and 0 <= chances.specificity <= 1):
            raise SkitError(f"recall and specificity of a predictor must lie in 0..1, not {self.predictor}")

    @property
    def typical(self) -> TypicalRound:
        steps = submitted = accepted = 0.0
        reached, correct = 1.0, 1.0
        passes, stops = (self.predictor.recall, self.predictor.specificity) if self.predictor else (1.0, 0.0)
        for rate in self.rates:
            right = correct * rate
            sent_right, sent_wrong = right * passes, (reached - right) * (1 - stops)
            steps, submitted, accepted = steps + reached, submitted + sent_right + sent_wrong, accepted + sent_right
            reached, correct = sent_right + sent_wrong, sent_right
        share = accepted / submitted if submitted else 0.0
        return TypicalRound(steps, submitted, share, len(self.rates), self.rates, self.spread, self.overconfidence)

    def begin(self, chance: Floats) -> ResponseStarts:
        unknown = np.zeros(len(chance), dtype=np.int64)
        return ResponseStarts(unknown, unknown, unknown)

    def rounds(self, place: Integers, chance: Floats) -> tuple[RoundArrays, Integers]:
        outcomes, below = self._outcomes
        drawn = np.minimum(np.searchsorted(below, chance, side="right"), len(below) - 1)
        return RoundArrays(*outcomes[:, drawn]), place

    @cached_property
    def _outcomes(self) -> tuple[Integers, Floats]:
        """Every round that can come, [4, outcomes], and the chances of it and of those before it."""
        odds: defaultdict[SimulatedRound, float] = defaultdict(float)
        passes = (1.0, 1.0)
        if self.predictor:
            passes = (1 - self.predictor.specificity, self.predictor.recall)
        going_on = {(True, 0): 1.0}
        for place, rate in enumerate(self.rates, 1):
            before, going_on = going_on, defaultdict(float)
            for ((was_right, accepted), reached), right in product(before.items(), (True, False)):
                chance = reached * ((rate if right else 1 - rate) if was_right else float(not right))
                odds[SimulatedRound(place, place - 1, accepted)] += chance * (1 - passes[right])
                going_on[right, accepted + right] += chance * passes[right]
        for (_, accepted), reached in going_on.items():
            odds[SimulatedRound(len(self.rates), len(self.rates), accepted)] += reached
        possible = {outcome: chance for outcome, chance in odds.items() if chance > 0}
        return np.array(list(possible)).T, np.cumsum(list(possible.values()))


def iid(
    alpha: float, length: int, predictor: StopRuleOdds | None = None, spread: float = 0.0, overconfidence: float = 1.0
) -> PositionRates:
    """Chains of one length whose tokens are accepted independently."""
    if length < 0:
        raise SkitError(f"a draft cannot be of {length} tokens")
    return PositionRates((alpha,) * length, predictor, spread, overconfidence)


class RecordedRounds:
    """RoundArrays as they were recorded, a request at a time, drawn by the device.

    A response that goes on beyond its record continues with another. A chain takes one forward a token, a tree, or what
    others were drafted beside, one for each level of what it submitted, or `levels` of them where these are said;
    `proactive` ones may follow.
    """

    def __init__(self, records: Sequence[RequestRecord], levels: int | None = None, proactive: int = 0) -> None:
        told = [record for record in records if record.rounds]
        if not told:
            raise SkitError("the records hold no finished request: record a trace or a run with at least one")
        self._lengths = np.array([(len(record.prompt_ids), len(record.output_ids)) for record in told]).T
        self._rounds = np.array([_round(one, levels, proactive) for record in told for one in record.rounds]).T
        ends = np.cumsum([len(record.rounds) for record in told])
        self._first = ends - [len(record.rounds) for record in told]
        self._next = np.arange(1, self._rounds.shape[1] + 1)
        self._next[ends - 1] = _ANOTHER
        steps, submitted, accepted, _ = self._rounds.sum(axis=1).tolist()
        rate = accepted / submitted if submitted else 0.0
        count = self._rounds.shape[1]
        self.typical = TypicalRound(steps / count, submitted / count, rate, int(self._rounds[1].max()))

    def begin(self, chance: Floats) -> ResponseStarts:
        drawn = (chance * len(self._first)).astype(np.int64)
        prompts, outputs = self._lengths[:, drawn]
        return ResponseStarts(prompts, outputs, self._first[drawn])

    def rounds(self, place: Integers, chance: Floats) -> tuple[RoundArrays, Integers]:
        here = np.where(place == _ANOTHER, self.begin(chance).place, place)
        return RoundArrays(*self._rounds[:, here]), self._next[here]


_ANOTHER = -1
"""Stands for the first round of a response that is still to be drawn."""


def _round(one: RoundRecord, levels: int | None, proactive: int) -> SimulatedRound:
    if levels is None:
        levels = one.deepest if one.parents or one.proactive else None
    return SimulatedRound(one.drafted if levels is None else levels, one.submitted, one.accepted, proactive)
