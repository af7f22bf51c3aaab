"""Where a response's rounds come from: recorded requests, or the odds that a draft's tokens are accepted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import NamedTuple, Protocol

from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.errors import SkitError

BISECTIONS = 40


class Round(NamedTuple):
    """One round of a device: `steps` forwards of the draft model, tokens sent, and how many the target takes.

    `proactive` steps go on while the round is verified.
    """

    steps: int
    submitted: int
    accepted: int
    proactive: int = 0


class Script(NamedTuple):
    """One response: its lengths in tokens where the source knows them, and rounds without end."""

    prompt_tokens: int | None
    output_tokens: int | None
    rounds: Iterator[Round]


class Acceptance(Protocol):
    """A source of rounds. What a scheduler may know of it beforehand is `typical`, never a round's outcome."""

    @property
    def typical(self) -> "Typical":
        """Averages over its rounds."""

    def script(self, random: Random) -> Script:
        """The next response of a device, from the device's own random numbers."""


class Typical(NamedTuple):
    """Averages per round: forwards of the draft model, tokens sent, and the share of these that is accepted.

    `longest` is the most that is sent.
    """

    steps: float
    submitted: float
    acceptance: float
    longest: int

    @property
    def committed(self) -> float:
        """Tokens that a round brings."""
        return 1 + self.submitted * self.acceptance

    @property
    def chance(self) -> float:
        """Of a token whose forerunners were accepted, as if it were the same at every place of a draft."""
        accepted, low, high = self.submitted * self.acceptance, 0.0, 1.0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            brings = middle * (1 - middle**self.submitted) / (1 - middle)
            low, high = (middle, high) if brings < accepted else (low, middle)
        return (low + high) / 2


@dataclass(frozen=True, slots=True)
class Predictor:
    """A stop rule: the share of right tokens that it lets pass, and of wrong ones that it stops."""

    recall: float
    specificity: float


@dataclass(frozen=True)
class PerPosition:
    """Chains whose token at position i is accepted with `rates[i]` if all before it were.

    With a predictor, drafting ends at the first token that it stops, which is drafted and not sent.
    """

    rates: tuple[float, ...]
    predictor: Predictor | None = None

    def __post_init__(self) -> None:
        if not all(0 <= rate <= 1 for rate in self.rates):
            raise SkitError(f"acceptance rates must lie in 0..1: {', '.join(map(str, self.rates))}")
        chances = self.predictor or Predictor(1, 0)
        if not (0 <= chances.recall <= 1 and 0 <= chances.specificity <= 1):
            raise SkitError(f"recall and specificity of a predictor must lie in 0..1, not {self.predictor}")

    @property
    def typical(self) -> Typical:
        steps = submitted = accepted = 0.0
        reached, correct = 1.0, 1.0
        passes, stops = (self.predictor.recall, self.predictor.specificity) if self.predictor else (1.0, 0.0)
        for rate in self.rates:
            right = correct * rate
            sent_right, sent_wrong = right * passes, (reached - right) * (1 - stops)
            steps, submitted, accepted = steps + reached, submitted + sent_right + sent_wrong, accepted + sent_right
            reached, correct = sent_right + sent_wrong, sent_right
        return Typical(steps, submitted, accepted / submitted if submitted else 0.0, len(self.rates))

    def script(self, random: Random) -> Script:
        return Script(None, None, self._judged(random) if self.predictor else self._whole(random))

    def _whole(self, random: Random) -> Iterator[Round]:
        draw, rates, length = random.random, self.rates, len(self.rates)
        outcomes = [Round(length, length, accepted) for accepted in range(length + 1)]
        while True:
            accepted = 0
            for rate in rates:
                if draw() >= rate:
                    break
                accepted += 1
            yield outcomes[accepted]

    def _judged(self, random: Random) -> Iterator[Round]:
        assert self.predictor is not None
        draw, recall, miss = random.random, self.predictor.recall, 1 - self.predictor.specificity
        while True:
            drafted = submitted = accepted = 0
            right = True
            for rate in self.rates:
                drafted += 1
                right = right and draw() < rate
                if draw() >= (recall if right else miss):
                    break
                submitted += 1
                accepted += right
            yield Round(drafted, submitted, accepted)


def iid(alpha: float, length: int, predictor: Predictor | None = None) -> PerPosition:
    """Chains of one length whose tokens are accepted independently."""
    if length < 0:
        raise SkitError(f"a draft cannot be of {length} tokens")
    return PerPosition((alpha,) * length, predictor)


@dataclass(frozen=True, slots=True)
class _Response:
    prompt_tokens: int
    output_tokens: int
    rounds: tuple[Round, ...]


class Recorded:
    """Rounds as they were recorded, a request at a time, drawn by the device.

    A response that goes on beyond its record continues with another. Drafts are chains, one forward a token, unless
    `levels` says how many forwards a tree takes before it is sent, and `proactive` how many may follow.
    """

    def __init__(self, records: Sequence[RequestRecord], levels: int | None = None, proactive: int = 0) -> None:
        self._responses = [
            _Response(
                len(record.prompt_ids),
                len(record.output_ids),
                tuple(_round(one, levels, proactive) for one in record.rounds),
            )
            for record in records
            if record.rounds
        ]
        if not self._responses:
            raise SkitError("the records hold no finished request: record a trace or a run with at least one")
        rounds = [one for response in self._responses for one in response.rounds]
        submitted = sum(one.submitted for one in rounds)
        accepted = sum(one.accepted for one in rounds)
        steps = sum(one.steps for one in rounds)
        rate = accepted / submitted if submitted else 0.0
        longest = max(one.submitted for one in rounds)
        self.typical = Typical(steps / len(rounds), submitted / len(rounds), rate, longest)

    def script(self, random: Random) -> Script:
        first = self._draw(random)
        return Script(first.prompt_tokens, first.output_tokens, chain(first.rounds, self._others(random)))

    def _others(self, random: Random) -> Iterator[Round]:
        while True:
            yield from self._draw(random).rounds

    def _draw(self, random: Random) -> _Response:
        return self._responses[int(random.random() * len(self._responses))]


def _round(one: RoundRecord, levels: int | None, proactive: int) -> Round:
    return Round(one.drafted if levels is None else levels, one.submitted, one.accepted, proactive)
