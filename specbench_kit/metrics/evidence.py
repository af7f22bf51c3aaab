"""Evidence on outputs that differ: scores computed again in the shapes of all forwards, and the
judgement by them.

The token that follows from scores is the likeliest one, or drawn by a number of the request's own
random stream.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from msgspec import structs
from torch import Tensor

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.metrics.losslessness import DivergenceJudge, Losslessness, ScoringCost
from specbench_kit.metrics.shapes import RecomputedLogits


class TokenChoice(Protocol):
    """The rule that chooses one request's tokens. Scores [..., vocabulary] decide, and rounding
    moves them.
    """

    def scores(self, logits: Tensor) -> Tensor:
        """Return the scores of logits."""

    def token(self, scores: Tensor, position: int) -> int:
        """Return the token that is chosen at a position of the output."""

    def margin(self, scores: Tensor, token: int, other: int) -> float:
        """Return the distance between the scores of two tokens."""

    def are_best(self, scores: Tensor, token: int, other: int) -> bool:
        """Return True if no third token could be chosen before one of these two."""

    def shortfall(self, scores: Tensor, position: int, token: int) -> float:
        """Return how far the scores would have to move for `token` to be chosen; 0 if it is
        chosen.
        """


class GreedyChoice:
    """Greedy decoding: scores are logits."""

    def scores(self, logits: Tensor) -> Tensor:
        return logits.float()

    def token(self, scores: Tensor, position: int) -> int:
        return int(scores.argmax())

    def margin(self, scores: Tensor, token: int, other: int) -> float:
        return float((scores[token] - scores[other]).abs())

    def are_best(self, scores: Tensor, token: int, other: int) -> bool:
        """Return True if at most one token has a higher logit than the lower one of the two."""
        lower = torch.minimum(scores[token], scores[other])
        return int((scores > lower).sum()) <= 1

    def shortfall(self, scores: Tensor, position: int, token: int) -> float:
        return float(scores.max() - scores[token])


@dataclass
class SampledChoice:
    """Sampling by inversion, as plain decoding does with the same seed: scores are cumulative
    probabilities.
    """

    sampler: Sampler
    random: RequestRandom
    _numbers: list[float] = field(default_factory=list)

    def scores(self, logits: Tensor) -> Tensor:
        cumulative = self.sampler.probabilities(logits).double().cumsum(-1)
        return cumulative / cumulative[..., -1:]

    def token(self, scores: Tensor, position: int) -> int:
        return int(torch.searchsorted(scores, self._number(position), right=True))

    def margin(self, scores: Tensor, token: int, other: int) -> float:
        """Return the probability of the tokens between the two, which rounding would have to pass
        over.
        """
        low, high = sorted((token, other))
        return float(scores[high - 1] - scores[low])

    def are_best(self, scores: Tensor, token: int, other: int) -> bool:
        """Return True: tokens between the two have a probability, which `margin` counts already."""
        return True

    def shortfall(self, scores: Tensor, position: int, token: int) -> float:
        number = self._number(position)
        below = float(scores[token - 1]) if token else 0.0
        return max(below - number, number - float(scores[token]), 0.0)

    def _number(self, position: int) -> float:
        # The stream can only be read in order, so the numbers of earlier positions are kept.
        while len(self._numbers) <= position:
            self._numbers.append(self.random.uniform("target"))
        return self._numbers[position]


def choice_of(sampler: Sampler, seed: int, request_id: str) -> TokenChoice:
    """Return the rule by which plain decoding chooses a request's tokens."""
    return (
        GreedyChoice()
        if sampler.greedy
        else SampledChoice(sampler, RequestRandom(seed, request_id))
    )


PLAUSIBLE = 4.0
"""Largest ratio of the noise to the control's that counts as rounding: beyond it a forward computes
something else.

On the bundled pair the ratio lies between 0.3 and 1.5, in float32, float16 and bfloat16, for chains
and trees.
"""


@dataclass(frozen=True, slots=True)
class ChoiceOfShape:
    """The token that a shape of forward chooses, and how far its scores would have to move for a
    given token.
    """

    token: int
    shortfall: float

    def gives(self, token: int, slack: float) -> bool:
        """Return True if the shape chooses a token, or would if its scores moved by less than
        `slack`.
        """
        return self.token == token or self.shortfall < slack


@dataclass(frozen=True, slots=True)
class DivergenceEvidence:
    """The target's scores at a position where an output has `token` and plain decoding `expected`.

    `margin` is the distance between the two in plain decoding's shape, `precise_margin` in float32. `are_best` says
    that no third token comes before them. The shortfall of `verified` is that of `token`, of `plain` that of
    `expected`.
    """

    position: int
    token: int
    expected: int
    margin: float
    are_best: bool
    verified: ChoiceOfShape
    plain: ChoiceOfShape
    precise_margin: float | None = None


@dataclass(frozen=True, slots=True)
class OutputEvidence:
    """The divergences of one output, and how far the scores of different shapes are apart along the
    whole output.

    `noise` is the largest difference between plain decoding and the verifications, `control` that between plain
    decoding and two shapes that drafting has no part in, `precise_noise` that between plain decoding and float32.
    """

    noise: float
    control: float
    precise_noise: float | None = None
    divergences: Sequence[DivergenceEvidence] = field(default_factory=tuple)

    @property
    def bound(self) -> float:
        """The margin up to which the noise can swap two tokens."""
        return 2 * min(self.noise, PLAUSIBLE * self.control)

    def explains(self, divergence: DivergenceEvidence, exact: bool) -> bool:
        """Return True if rounding explains a divergence.

        Its tokens have to be nearer than twice the noise (each of them may move by it), and each
        shape has to give the token that it gave in the run: the very token if the shapes are known
        exactly, else a token within the same bound. In half precision a tie must be one in float32
        too, up to what the lower precision loses.
        """
        slack = 0.0 if exact else self.bound
        explained = (
            divergence.margin <= self.bound
            and divergence.are_best
            and divergence.verified.gives(divergence.token, slack)
            and divergence.plain.gives(divergence.expected, slack)
        )
        if explained and divergence.precise_margin is not None and self.precise_noise is not None:
            return divergence.precise_margin <= 2 * self.precise_noise
        return explained

    def verdict(self, record: RequestRecord, exact: bool) -> Losslessness:
        """Return the first error among the divergences, or the first tie if there is no error."""
        results = [self._judged(record, divergence, exact) for divergence in self.divergences]
        return next((result for result in results if result.verdict == "error"), results[0])

    def _judged(
        self, record: RequestRecord, divergence: DivergenceEvidence, exact: bool
    ) -> Losslessness:
        return Losslessness(
            record.request_id,
            "tie" if self.explains(divergence, exact) else "error",
            divergence.position,
            divergence.token,
            divergence.expected,
            divergence.margin,
            record.repeat,
            self.noise,
            self.control,
        )


def gather_evidence(
    shapes: RecomputedLogits,
    record: RequestRecord,
    baseline: RequestRecord,
    position: int,
    choice: TokenChoice,
    exact: bool,
) -> OutputEvidence:
    """Score an output that differs from its baseline from `position` on, up to the first
    unexplained divergence.

    After a tie the output is compared with the target's choices that follow the output's own
    prefix.
    """
    plain, verified = (
        choice.scores(logits) for logits in (shapes.plain(record, baseline), shapes.rounds(record))
    )
    undrafted = (
        choice.scores(logits) for logits in (shapes.single_forward(record), shapes.control(record))
    )
    control = max(_difference(plain, scores) for scores in undrafted)
    evidence = OutputEvidence(_difference(plain, verified), control)
    divergences: list[DivergenceEvidence] = []
    for place, expected in _differing(record, baseline, position, choice, plain):
        token = record.output_ids[place]
        divergences.append(
            DivergenceEvidence(
                place,
                token,
                expected,
                choice.margin(plain[place], token, expected),
                choice.are_best(plain[place], token, expected),
                _choice_of_shape(choice, verified[place], place, token),
                _choice_of_shape(choice, plain[place], place, expected),
            )
        )
        if not evidence.explains(divergences[-1], exact):
            break
    # The forward in float32 is made only if it can change the verdict.
    ties = any(evidence.explains(divergence, exact) for divergence in divergences)
    if ties and shapes.reduced and (logits := shapes.precise(record)) is not None:
        precise = choice.scores(logits)
        evidence = replace(evidence, precise_noise=_difference(plain, precise))
        divergences = [
            _with_precise_margin(divergence, choice, precise) for divergence in divergences
        ]
    return replace(evidence, divergences=tuple(divergences))


def _differing(
    record: RequestRecord,
    baseline: RequestRecord,
    position: int,
    choice: TokenChoice,
    plain: Tensor,
) -> Iterator[tuple[int, int]]:
    """Yield the positions at which the output diverges, and the expected tokens."""
    yield position, baseline.output_ids[position]
    for later in range(position + 1, len(record.output_ids)):
        expected = choice.token(plain[later], later)
        if record.output_ids[later] != expected:
            yield later, expected


def _with_precise_margin(
    divergence: DivergenceEvidence, choice: TokenChoice, precise: Tensor
) -> DivergenceEvidence:
    margin = choice.margin(precise[divergence.position], divergence.token, divergence.expected)
    return replace(divergence, precise_margin=margin)


def _choice_of_shape(
    choice: TokenChoice, scores: Tensor, position: int, token: int
) -> ChoiceOfShape:
    return ChoiceOfShape(choice.token(scores, position), choice.shortfall(scores, position, token))


def _difference(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max())


Chooser = Callable[[RequestRecord], TokenChoice]
"""Returns the rule by which a request's tokens are chosen."""


class ShapeJudge:
    """Computes an output's logits again, in the shapes that were compared, and judges by them.

    The shapes of rounds in one process are on record, and so known exactly (`exact`).
    """

    def __init__(self, shapes: RecomputedLogits, choose: Chooser, exact: bool) -> None:
        self._shapes = shapes
        self._choose = choose
        self._exact = exact

    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        """Return the first error from `position` on, or the first tie if there is no error."""
        choice = self._choose(record)
        evidence = gather_evidence(self._shapes, record, baseline, position, choice, self._exact)
        return evidence.verdict(record, self._exact)


class RemoteJudge(DivergenceJudge, Protocol):
    """A judge whose evidence comes from another process."""

    cost: ScoringCost


class NoEvidence:
    """Leaves outputs unjudged for a reason, unless the target is `bitwise`, which leaves nothing to
    rounding.
    """

    def __init__(
        self, bitwise: bool = False, reason: str = "nothing is known of the target's rounding"
    ) -> None:
        self._bitwise = bitwise
        self._reason = reason
        self.cost = ScoringCost()

    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        """Return `error` for a bitwise target, else `unjudged`."""
        tokens = record.output_ids[position], baseline.output_ids[position]
        result = Losslessness(record.request_id, "error", position, *tokens, repeat=record.repeat)
        return (
            result
            if self._bitwise
            else structs.replace(result, verdict="unjudged", reason=self._reason)
        )
