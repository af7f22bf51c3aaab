"""Outputs against plain autoregressive ones, token for token; a tie has to be explained by measured rounding."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import takewhile
from typing import Any, Literal, Protocol

from torch import Tensor

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.choices import TokenChoice
from specbench_kit.metrics.shapes import RecomputedLogits

Verdict = Literal["identical", "tie", "error", "prompt differs", "not compared"]

PLAUSIBLE = 4.0
"""Noise counts up to this multiple of the control's: more is no rounding, but a forward that computes something else.

On the bundled pair the ratio lies between 0.3 and 1.5, in float32, float16 and bfloat16, for chains and trees.
"""


@dataclass(frozen=True, slots=True)
class Losslessness:
    """How one request's output compares with the baseline's.

    At the divergence that decided: `position` in the output (from 0), the method's token there and the one that plain
    decoding gives (None where that output has ended), and how far the target holds them apart in plain decoding's
    shape: `margin` in logits, or in probability where outputs are drawn. `noise` is the largest difference between the
    logits of plain decoding and of the verifications, along the output; `control` that between plain decoding, the same
    in a batch and one forward of everything; `precise_margin` the margin in float32. `prompt differs` is a later turn
    of a dialogue whose earlier output diverged; `not compared` failed in either run, has no baseline, or comes from a
    tool that does not name its tokens.
    """

    request_id: str
    verdict: Verdict
    position: int | None = None
    method_token: int | None = None
    baseline_token: int | None = None
    margin: float | None = None
    repeat: int = 0
    noise: float | None = None
    control: float | None = None
    precise_margin: float | None = None


class DivergenceJudge(Protocol):
    """Decides on an output that differs from its baseline's."""

    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        """Whether rounding explains what differs from `position` on."""


def check(record: RequestRecord, baseline: RequestRecord | None, judge: DivergenceJudge) -> Losslessness:
    """Compare one request with its baseline; the judge is asked only at a divergence.

    Outputs are expected to hold their end-of-sequence token, so one that merely ends earlier than the other is an
    error.
    """
    where = partial(Losslessness, record.request_id, repeat=record.repeat)
    if baseline is None or "error" in (record.finish_reason, baseline.finish_reason) or not record.has_token_ids:
        return where("not compared")
    if record.prompt_ids != baseline.prompt_ids:
        return where("prompt differs")
    if record.output_ids == baseline.output_ids:
        return where("identical")
    position = _common_length(record.output_ids, baseline.output_ids)
    tokens = _token_at(record.output_ids, position), _token_at(baseline.output_ids, position)
    if None in tokens:
        return where("error", position, *tokens)
    return judge.judge(record, baseline, position)


def _common_length(left: Sequence[int], right: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _token_at(output_ids: Sequence[int], position: int) -> int | None:
    return output_ids[position] if position < len(output_ids) else None


class ShapeJudge:
    """Computes an output's logits again, in the shapes that were compared.

    A divergence is a tie if the target's two best tokens are nearer than twice the noise (each of them may move by it),
    and if each shape gives the token that it gave in the run: the very token where the shapes are known exactly
    (`exact`: those of rounds in one process are on record), else one within the same bound.
    Behind a tie the output is held against the target's choices after the output's own prefix.
    """

    def __init__(self, shapes: RecomputedLogits, choose: "Chooser", exact: bool) -> None:
        self._shapes, self._choose, self._exact = shapes, choose, exact

    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        """The first error from `position` on, or the first tie where there is none."""
        evidence = Evidence(self._shapes, record, baseline, self._choose(record), self._exact)
        found = [evidence.judge(position, baseline.output_ids[position], from_baseline=True)]
        for later in range(position + 1, len(record.output_ids)):
            wanted = evidence.choice.token(evidence.plain[later], later)
            if found[-1].verdict == "tie" and record.output_ids[later] != wanted:
                found.append(evidence.judge(later, wanted))
        return found[-1] if found[-1].verdict == "error" else found[0]


class Chooser(Protocol):
    """Makes the rule by which a request's tokens are chosen."""

    def __call__(self, record: RequestRecord, /) -> TokenChoice: ...


class Evidence:
    """One output's scores along all positions [tokens, vocabulary], in every shape; each is computed when asked for."""

    def __init__(
        self, shapes: RecomputedLogits, record: RequestRecord, baseline: RequestRecord, choice: TokenChoice, exact: bool
    ) -> None:
        self._shapes, self._record, self._baseline, self._exact = shapes, record, baseline, exact
        self.choice = choice

    @cached_property
    def plain(self) -> Tensor:
        """In the baseline's shapes: the prompt, then token by token."""
        return self.choice.scores(self._shapes.plain(self._record, self._baseline))

    @cached_property
    def verified(self) -> Tensor:
        """In the shapes of the output's verifications."""
        return self.choice.scores(self._shapes.rounds(self._record))

    @cached_property
    def noise(self) -> float:
        """Between the two shapes that are compared."""
        return _apart(self.plain, self.verified)

    @cached_property
    def control(self) -> float:
        """Between three shapes that have no part in drafting."""
        whole = _apart(self.plain, self.choice.scores(self._shapes.single_forward(self._record)))
        return max(whole, _apart(self.plain, self.choice.scores(self._shapes.control(self._record))))

    @property
    def bound(self) -> float:
        """Margin up to which the noise can swap two tokens."""
        return 2 * min(self.noise, PLAUSIBLE * self.control)

    def judge(self, position: int, wanted: int, from_baseline: bool = False) -> Losslessness:
        """One divergence; `wanted` is the baseline's token, or the target's own choice behind a tie."""
        token, scores = self._record.output_ids[position], self.plain[position]
        margin = self.choice.margin(scores, token, wanted)
        explained = (
            margin <= self.bound
            and self.choice.are_best(scores, token, wanted)
            and self._gives(self.verified, position, token, self._slack)
            and (not from_baseline or self._gives(self.plain, position, wanted, self._slack))
        )
        precise = self._precise_margin(position, token, wanted) if explained and self._shapes.reduced else None
        explained = explained and (precise is None or precise <= 2 * self._imprecision)
        return Losslessness(
            self._record.request_id,
            "tie" if explained else "error",
            position,
            token,
            wanted,
            margin,
            self._record.repeat,
            self.noise,
            self.control,
            precise,
        )

    def _gives(self, scores: Tensor, position: int, token: int, slack: float) -> bool:
        row = scores[position]
        return self.choice.token(row, position) == token or self.choice.shortfall(row, position, token) < slack

    @property
    def _slack(self) -> float:
        """What shapes that are not known exactly may add."""
        return 0.0 if self._exact else self.bound

    @cached_property
    def _precise(self) -> Tensor | None:
        logits = self._shapes.precise(self._record)
        return None if logits is None else self.choice.scores(logits)

    @property
    def _imprecision(self) -> float:
        return 0.0 if self._precise is None else _apart(self.plain, self._precise)

    def _precise_margin(self, position: int, token: int, wanted: int) -> float | None:
        return None if self._precise is None else self.choice.margin(self._precise[position], token, wanted)


def _apart(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max())


def check_all(
    records: Sequence[RequestRecord], baseline: Sequence[RequestRecord], judge: DivergenceJudge
) -> list[Losslessness]:
    """`check` for every record, paired by request and repeat."""
    by_key = {r.key: r for r in baseline}
    return [check(record, by_key.get(record.key), judge) for record in records]


def summarise_checks(checks: Sequence[Losslessness]) -> dict[str, Any]:
    """Counts by verdict and the divergences, for `summary.json`.

    `lossless` is True without errors, and None where no request could be compared; `noise` and `control` are the
    largest that were measured, None where nothing diverged.
    """
    verdicts = [c.verdict for c in checks]
    identical, ties, errors = (verdicts.count(v) for v in ("identical", "tie", "error"))
    compared = identical + ties + errors
    return {
        "lossless": errors == 0 if compared else None,
        "compared": compared,
        "identical": identical,
        "ties": ties,
        "errors": errors,
        "prompt_differs": verdicts.count("prompt differs"),
        "not_compared": verdicts.count("not compared"),
        "noise": max((c.noise for c in checks if c.noise is not None), default=None),
        "control": max((c.control for c in checks if c.control is not None), default=None),
        "divergences": [asdict(c) for c in checks if c.verdict in ("tie", "error")],
    }
