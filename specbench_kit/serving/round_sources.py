"""The rounds of simulated responses: drawn from acceptance rates, or taken from recorded requests.

Where only acceptance rates are known, a model draws the confidence that a draft model would state
for each token.
"""

from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple, Protocol

import numpy as np

from specbench_kit.core.errors import SkitError, require
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.drafting_work import RoundWork, WorkLog
from specbench_kit.metrics.along import Place
from specbench_kit.serving.arrays import Floats, Integers
from specbench_kit.serving.drafter_costs import DRAFT_MODEL, DrafterCosts

GRID = 512
"""Number of confidence values that are distinguished."""


class ConfidenceModel:
    """Confidences of drafted tokens, by position in the draft, scattered around the acceptance rate
    of that position.

    The true probability that a token is right follows a Beta distribution whose variance is
    `spread` x rate x (1 - rate): with 0 every token has the rate itself, towards 1 every token is
    certain, rightly or wrongly. For a token whose outcome is already drawn, the probability is
    sampled from those that lead to this outcome, so that of all tokens with probability p the share
    p is right. The draft model reports the odds times `overconfidence`.
    """

    def __init__(self, rates: Sequence[float], spread: float, overconfidence: float = 1.0) -> None:
        self.rates = np.array(rates)
        self._spread = spread
        self._overconfidence = overconfidence
        self._values = (np.arange(GRID) + 0.5) / GRID
        if 0 < spread < 1:
            self._cumulative = np.array(
                [self._cumulative_tables(min(max(rate, 1 / GRID), 1 - 1 / GRID)) for rate in rates]
            )

    def reported(self, accepted: Integers, uniform: Floats) -> Floats:
        """Return the confidences that the draft model reports, [requests, positions].

        `accepted` is how many tokens of each request's draft are right, `uniform` are random numbers [requests,
        positions].
        """
        true = self.sample(accepted, uniform)
        reported: Floats = true * self._overconfidence / (1 + true * (self._overconfidence - 1))
        return reported

    def sample(self, accepted: Integers, uniform: Floats) -> Floats:
        """Return the true probabilities that the tokens are right, given the outcome; shapes as in
        `reported`.
        """
        if not self._spread or not len(self.rates):
            return np.broadcast_to(self.rates, uniform.shape)
        positions = np.arange(len(self.rates))
        is_right = positions < accepted[:, None]
        if self._spread >= 1:
            certain: Floats = is_right.astype(np.float64)
            return certain
        # The first token that is not accepted is known to be wrong; nothing is known of those
        # behind it.
        outcome = np.where(
            is_right, _RIGHT, np.where(positions == accepted[:, None], _WRONG, _UNDECIDED)
        )
        sampled = np.empty(uniform.shape)
        for position, tables in enumerate(self._cumulative):
            for kind, cumulative in enumerate(tables):
                rows = outcome[:, position] == kind
                sampled[rows, position] = np.interp(
                    uniform[rows, position], cumulative, self._values
                )
        return sampled

    def _cumulative_tables(self, rate: float) -> list[Floats]:
        """Return the cumulative distributions over `self._values` of right tokens, of wrong ones,
        and of all.
        """
        total = 1 / self._spread - 1
        values = self._values
        log_density = (rate * total - 1) * np.log(values) + ((1 - rate) * total - 1) * np.log1p(
            -values
        )
        density = np.exp(log_density - log_density.max())
        weights = density * values, density * (1 - values), density
        return [(np.cumsum(weight) - weight / 2) / weight.sum() for weight in weights]


_RIGHT, _WRONG, _UNDECIDED = range(3)


BISECTIONS = 40


def acceptance_rate_of(accepted: float, drafted: float) -> float:
    """Return the per-token acceptance rate at which drafts of `drafted` tokens have `accepted`
    accepted on average.

    The rate is that of a token whose predecessors were all accepted, equal at every position.
    """
    low = 0.0
    high = 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        mean_accepted = middle * (1 - middle**drafted) / (1 - middle)
        low, high = (middle, high) if mean_accepted < accepted else (low, middle)
    return (low + high) / 2


CHAIN = -1
"""Stands for the work of a chain: one forward of the drafter per step, behind what it has not
read.
"""


class SimulatedRound(NamedTuple):
    """One round of a device: draft model forwards (`steps`), tokens submitted, and how many of them
    are accepted.

    The draft model makes `proactive` further forwards while the round is verified. `work` is the
    number of the round's work among its source's `works`; where nothing but `steps` is known, it is
    `CHAIN`: a forward for every step. A round that was left to the server's own decoding does not
    cross the link.
    """

    steps: int
    submitted: int
    accepted: int
    proactive: int = 0
    work: int = CHAIN
    crosses: int = 1


class RoundArrays(NamedTuple):
    """One round of each of several devices: the fields of `SimulatedRound` as arrays [devices]."""

    steps: Integers
    submitted: Integers
    accepted: Integers
    proactive: Integers
    work: Integers
    crosses: Integers


class ResponseStarts(NamedTuple):
    """New responses: their lengths in tokens (0 if the source does not know them) and a cursor to
    their first round.
    """

    prompt_tokens: Integers
    output_tokens: Integers
    cursor: Integers


class RoundSource(Protocol):
    """A source of rounds. A scheduler may know its averages (`typical`) beforehand, never the
    outcome of a round.
    """

    @property
    def typical(self) -> "TypicalRound":
        """Averages over its rounds."""

    @property
    def costs(self) -> DrafterCosts:
        """How long its drafter takes."""

    @property
    def works(self) -> Sequence[RoundWork]:
        """The work of drafting that its rounds name by number; empty if every round drafts a
        chain.
        """

    @property
    def shortest_output(self) -> int:
        """Tokens of its shortest response; 0 if it does not know lengths."""

    def begin(self, uniform: Floats) -> ResponseStarts:
        """Start one response per random number."""

    def rounds(self, cursor: Integers, uniform: Floats) -> tuple[RoundArrays, Integers]:
        """Return the next round of each response, drawn with one random number each, and the
        cursors behind it.
        """


class TypicalRound(NamedTuple):
    """Averages per round: draft model forwards, submitted tokens, and the share of these that is
    accepted.

    `longest` is the longest draft. `rates` are the acceptance rates by position, given that all earlier tokens were
    accepted, where they are known; `spread` and `overconfidence` describe the draft model's confidence (see
    `ConfidenceModel`).
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
        """Acceptance length: the accepted tokens and the bonus token."""
        return 1 + self.submitted * self.acceptance

    @property
    def confidence(self) -> ConfidenceModel:
        """Confidences of single tokens."""
        return ConfidenceModel(
            self.rates or (self.rate,) * self.longest, self.spread, self.overconfidence
        )

    @property
    def rate(self) -> float:
        """Acceptance rate of a token whose predecessors were accepted, as if it were equal at every
        position.
        """
        return acceptance_rate_of(self.submitted * self.acceptance, self.submitted)


@dataclass(frozen=True, slots=True)
class StopRuleRates:
    """A stop rule: the share of right tokens that it lets pass, and the share of wrong ones at
    which it stops.
    """

    recall: float
    specificity: float


class StatedRounds:
    """Rounds that are drawn from stated rates: chains, of responses whose lengths nothing tells."""

    @property
    def works(self) -> Sequence[RoundWork]:
        return ()

    @property
    def shortest_output(self) -> int:
        return 0

    def begin(self, uniform: Floats) -> ResponseStarts:
        unknown = np.zeros(len(uniform), dtype=np.int64)
        return ResponseStarts(unknown, unknown, unknown)


@dataclass(frozen=True)
class PositionRates(StatedRounds):
    """Chains whose i-th token is accepted with probability `rates[i]` if all earlier ones were.

    With a stop rule, drafting ends at the first token that it stops; that token is drafted and not
    submitted. `spread` and `overconfidence` are those of `ConfidenceModel`.
    """

    rates: tuple[float, ...]
    stop_rule: StopRuleRates | None = None
    spread: float = 0.0
    overconfidence: float = 1.0
    costs: DrafterCosts = DRAFT_MODEL

    def __post_init__(self) -> None:
        require(0 <= self.spread <= 1, f"spread must lie in 0..1, not {self.spread:g}")
        require(
            self.overconfidence > 0, f"overconfidence must be above 0, not {self.overconfidence:g}"
        )
        rates_in_bounds = all(0 <= rate <= 1 for rate in self.rates)
        require(
            rates_in_bounds, f"acceptance rates must lie in 0..1: {', '.join(map(str, self.rates))}"
        )
        if self.stop_rule is not None:
            recall = self.stop_rule.recall
            specificity = self.stop_rule.specificity
            require(
                0 <= recall <= 1 and 0 <= specificity <= 1,
                f"recall and specificity must lie in 0..1, not {recall:g} and {specificity:g}",
            )

    @property
    def typical(self) -> TypicalRound:
        steps = submitted = accepted = 0.0
        reached = 1.0
        correct = 1.0
        passes, stops = (
            (self.stop_rule.recall, self.stop_rule.specificity) if self.stop_rule else (1.0, 0.0)
        )
        for rate in self.rates:
            right = correct * rate
            sent_right = right * passes
            sent_wrong = (reached - right) * (1 - stops)
            steps = steps + reached
            submitted = submitted + sent_right + sent_wrong
            accepted = accepted + sent_right
            reached = sent_right + sent_wrong
            correct = sent_right
        share = accepted / submitted if submitted else 0.0
        return TypicalRound(
            steps, submitted, share, len(self.rates), self.rates, self.spread, self.overconfidence
        )

    def with_rates_times(self, factor: float) -> "PositionRates":
        """Return the source whose tokens are accepted so many times as often, at most always."""
        return replace(self, rates=tuple(min(1.0, factor * rate) for rate in self.rates))

    def rounds(self, cursor: Integers, uniform: Floats) -> tuple[RoundArrays, Integers]:
        outcomes, cumulative = self._outcomes
        index = np.minimum(np.searchsorted(cumulative, uniform, side="right"), len(cumulative) - 1)
        return RoundArrays(*outcomes[:, index]), cursor

    def tables(self) -> tuple[Integers | Floats, ...]:
        """Return rounds [6, rounds], cumulative probabilities, the order and beginnings of recorded
        rounds, and the places from which on probabilities differ.
        """
        outcomes, cumulative = self._outcomes
        return np.ascontiguousarray(outcomes), cumulative, _NO_ROUNDS, _NO_ROUNDS, _NO_ROUNDS

    @cached_property
    def _outcomes(self) -> tuple[Integers, Floats]:
        """Return every possible round as a column [6, outcomes], and the cumulative probabilities
        [outcomes].

        Enumerating them once turns drawing a round into a binary search with a single random
        number.
        """
        possible = self.outcomes
        return np.array(list(possible)).T, np.cumsum(list(possible.values()))

    @property
    def outcomes(self) -> dict[SimulatedRound, float]:
        """The probability of every possible round."""
        probabilities: defaultdict[SimulatedRound, float] = defaultdict(float)
        passes = (1.0, 1.0)
        if self.stop_rule:
            passes = (1 - self.stop_rule.specificity, self.stop_rule.recall)
        # State of a draft that goes on: (all tokens right so far, accepted tokens) -> probability.
        ongoing = {(True, 0): 1.0}
        for length, rate in enumerate(self.rates, 1):
            before = ongoing
            ongoing = defaultdict(float)
            for ((was_right, accepted), reached), right in product(before.items(), (True, False)):
                probability = reached * (
                    (rate if right else 1 - rate) if was_right else float(not right)
                )
                probabilities[SimulatedRound(length, length - 1, accepted)] += probability * (
                    1 - passes[right]
                )
                ongoing[right, accepted + right] += probability * passes[right]
        for (_, accepted), reached in ongoing.items():
            probabilities[SimulatedRound(len(self.rates), len(self.rates), accepted)] += reached
        return {
            outcome: probability
            for outcome, probability in probabilities.items()
            if probability > 0
        }


def iid(
    alpha: float,
    length: int,
    stop_rule: StopRuleRates | None = None,
    spread: float = 0.0,
    overconfidence: float = 1.0,
    costs: DrafterCosts = DRAFT_MODEL,
) -> PositionRates:
    """Return a source of chains of one length whose tokens are accepted independently with
    probability `alpha`.
    """
    require(length >= 0, f"a draft cannot be of {length} tokens")
    return PositionRates((alpha,) * length, stop_rule, spread, overconfidence, costs)


@dataclass(frozen=True)
class RatesByPlace(StatedRounds):
    """Chains whose rates depend on the place at which they are drafted.

    From each number in `begins` on, the first of which is 0, the source of the same number holds;
    `by` says what the numbers count. The cursor of a response is its place.
    """

    begins: tuple[int, ...]
    sources: tuple[PositionRates, ...]
    by: Place = "context"

    @property
    def costs(self) -> DrafterCosts:
        return self.sources[0].costs

    @property
    def typical(self) -> TypicalRound:
        """The averages in the middle of the places, which is all that a scheduler knows beforehand."""
        return self.sources[len(self.sources) // 2].typical

    def with_rates_times(self, factor: float) -> "RatesByPlace":
        """Return the source whose tokens are accepted so many times as often, at most always."""
        scaled = (source.with_rates_times(factor) for source in self.sources)
        return replace(self, sources=tuple(scaled))

    def rounds(self, cursor: Integers, uniform: Floats) -> tuple[RoundArrays, Integers]:
        columns, cumulative, *_ = self.tables()
        rows = cumulative.reshape(len(self.sources), -1)[
            np.searchsorted(self.begins, cursor, side="right") - 1
        ]
        index = np.minimum((rows <= uniform[:, None]).sum(axis=1), columns.shape[1] - 1)
        return RoundArrays(*columns[:, index].astype(np.int64)), cursor

    def tables(self) -> tuple[Integers | Floats, ...]:
        """Return the same as `PositionRates.tables`, with the cumulative probabilities of each place
        one behind the other, and where each begins.
        """
        return self._tables

    @cached_property
    def _tables(self) -> tuple[Integers | Floats, ...]:
        outcomes = [source.outcomes for source in self.sources]
        possible = list(dict.fromkeys(outcome for of_place in outcomes for outcome in of_place))
        chances = [[of_place.get(outcome, 0.0) for outcome in possible] for of_place in outcomes]
        cumulative = np.cumsum(chances, axis=1)
        columns = np.ascontiguousarray(np.array(possible).T)
        begins = np.array(self.begins, dtype=np.int64)
        return columns, cumulative.reshape(-1), _NO_ROUNDS, _NO_ROUNDS, begins


def place_of(source: RoundSource) -> Place | None:
    """Return what a source's cursor counts, if it is a response's place; None for a cursor of its
    own.
    """
    return source.by if isinstance(source, RatesByPlace) else None


class RecordedAnswers:
    """Recorded requests, one of which is drawn at random for each response.

    `lengths` are the tokens of their prompts and answers, and `first` the places where their own records begin.
    """

    def __init__(self, lengths: Sequence[tuple[int, int]], first: Integers) -> None:
        self._lengths = np.array(lengths).T
        self._first = first

    @property
    def shortest_output(self) -> int:
        return int(self._lengths[1].min())

    def begin(self, uniform: Floats) -> ResponseStarts:
        records = (uniform * len(self._first)).astype(np.int64)
        prompts, outputs = self._lengths[:, records]
        return ResponseStarts(prompts, outputs, self._first[records])


class RecordedRounds(RecordedAnswers):
    """Recorded rounds; each response replays the rounds of one recorded request, drawn at random.

    A response that is longer than its record continues with another one. A chain takes one draft
    forward per token, before it is sent or during its verification as it was recorded; a tree takes
    one per level that it submitted, unless all of it was drafted earlier. Where `levels` are given
    every round takes so many, and `proactive` further ones during verification. Where a replay has
    left its `log`, every round takes the very work that it took there.
    """

    def __init__(
        self,
        records: Sequence[RequestRecord],
        levels: int | None = None,
        proactive: int = 0,
        log: WorkLog | None = None,
        costs: DrafterCosts = DRAFT_MODEL,
    ) -> None:
        self.costs = costs
        records = [record for record in records if record.rounds]
        if not records:
            raise SkitError(
                "the records hold no finished request: record a trace or a run with at least one"
            )
        lengths = [(len(record.prompt_ids), len(record.output_ids)) for record in records]
        ends = np.cumsum([len(record.rounds) for record in records])
        super().__init__(lengths, ends - [len(record.rounds) for record in records])
        rounds = []
        numbers: dict[RoundWork, int] = {}
        logged = (
            []
            if log is None
            else [work for record in records for work in log.rounds[record.request_id]]
        )
        for index, entry in enumerate(entry for record in records for entry in record.rounds):
            steps, ahead = levels, proactive
            if steps is None:
                steps = entry.drafted - entry.proactive
                if entry.parents:
                    steps = entry.deepest if steps else 0
                else:
                    ahead = ahead or entry.proactive
            simulated = SimulatedRound(steps or 0, entry.submitted, entry.accepted, ahead)
            if logged:
                work = logged[index]
                number = numbers.setdefault(work, len(numbers))
                simulated = simulated._replace(
                    proactive=len(work.ahead), work=number, crosses=int(work.crosses)
                )
            rounds.append(simulated)
        self.works: Sequence[RoundWork] = list(numbers)
        self._rounds = np.array(rounds).T
        self._next = np.arange(1, self._rounds.shape[1] + 1)
        self._next[ends - 1] = DRAW_RECORD
        beside = [record.colocated_s for record in records if record.e2e_s and record.colocated_s]
        edge_s = sum(record.e2e_s for record in records if record.e2e_s and record.colocated_s)
        self.colocated_ratio = sum(beside) / edge_s if beside else None
        """Speed of one request alone, relative to the same with the draft model on the server; None
        if not known.
        """

    @cached_property
    def typical(self) -> TypicalRound:
        steps, submitted, accepted, *_ = self._rounds.sum(axis=1).tolist()
        share = accepted / submitted if submitted else 0.0
        count = self._rounds.shape[1]
        return TypicalRound(steps / count, submitted / count, share, int(self._rounds[1].max()))

    def with_rates_times(self, factor: float) -> "RecordedRounds":
        """Return the same drafts, each token of which is accepted so many times as often, at most
        always.

        That is the rate of a token whose predecessors were accepted. Drawn once, always alike:
        accepted tokens are rejected, or the first rejected one is accepted after all and with it
        perhaps some behind it.
        """
        _, submitted, accepted, *_ = self._rounds
        uniform = np.random.default_rng(0).random((len(accepted), max(self.typical.longest, 1)))
        if factor <= 1:
            kept = np.cumprod(uniform < factor, axis=1).sum(axis=1)
            moved = np.minimum(accepted, kept)
        else:
            before = self.typical.rate
            rate = min(1.0, factor * before)
            thresholds = np.full(uniform.shape[1], rate)
            # Of the tokens that were rejected, so many are accepted that the rate of all is as
            # wanted.
            thresholds[0] = (rate - before) / (1 - before) if before < 1 else 1.0
            more = np.cumprod(uniform < thresholds, axis=1).sum(axis=1)
            moved = np.minimum(submitted, accepted + more)
        scaled = copy(self)
        scaled.__dict__.pop("typical", None)
        scaled._rounds = self._rounds.copy()
        scaled._rounds[2] = moved
        return scaled

    def tables(self) -> tuple[Integers | Floats, ...]:
        """Return the same as `PositionRates.tables`; there are no probabilities."""
        first = np.asarray(self._first)
        return np.ascontiguousarray(self._rounds), np.zeros(0), self._next, first, _NO_ROUNDS

    def rounds(self, cursor: Integers, uniform: Floats) -> tuple[RoundArrays, Integers]:
        current = np.where(cursor == DRAW_RECORD, self.begin(uniform).cursor, cursor)
        return RoundArrays(*self._rounds[:, current]), self._next[current]


_NO_ROUNDS = np.zeros(0, dtype=np.int64)
DRAW_RECORD = -1
"""Cursor of a response whose record is used up: its next round is the first one of a record still
to be drawn.
"""
