"""Outputs compared with plain autoregressive ones token for token; a tie must be explained by measured rounding."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Literal, Protocol

from torch import Tensor

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.choices import TokenChoice
from specbench_kit.metrics.shapes import RecomputedLogits

Verdict = Literal["identical", "tie", "error", "prompt differs", "not compared"]

PLAUSIBLE = 4.0
"""Largest ratio of the noise to the control's that counts as rounding: beyond it a forward computes something else.

On the bundled pair the ratio lies between 0.3 and 1.5, in float32, float16 and bfloat16, for chains and trees.
"""


@dataclass(frozen=True, slots=True)
class Losslessness:
    """The comparison of one request's output with the baseline's.

    At the divergence that decided: `position` in the output (from 0), the method's token and the token of plain
    decoding (None if that output has ended), and the target's `margin` between the two in plain decoding's shape, in
    logits, or in probability if outputs are sampled. `noise` is the largest difference between the scores of plain
    decoding and of the verifications along the output; `control` that between plain decoding, the same in a batch and
    one forward of everything; `precise_margin` the margin in float32. `prompt differs` is a later turn of a dialogue
    whose earlier output diverged; `not compared` failed in either run, has no baseline, or comes from a tool that does
    not name its tokens.
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
        """Return `tie` if rounding explains the differences from `position` on, else `error`."""


def check(record: RequestRecord, baseline: RequestRecord | None, judge: DivergenceJudge) -> Losslessness:
    """Compare one request with its baseline; the judge is asked only at a divergence.

    Outputs should hold their end-of-sequence token, so an output that merely ends before the other is an error.
    """
    result = partial(Losslessness, record.request_id, repeat=record.repeat)
    if baseline is None or "error" in (record.finish_reason, baseline.finish_reason) or not record.has_token_ids:
        return result("not compared")
    if record.prompt_ids != baseline.prompt_ids:
        return result("prompt differs")
    if record.output_ids == baseline.output_ids:
        return result("identical")
    outputs = record.output_ids, baseline.output_ids
    shorter = min(map(len, outputs))
    position = next((index for index in range(shorter) if outputs[0][index] != outputs[1][index]), shorter)
    if position == shorter:  # one output ends where the other goes on
        return result("error", position, *(ids[position] if position < len(ids) else None for ids in outputs))
    return judge.judge(record, baseline, position)


Chooser = Callable[[RequestRecord], TokenChoice]
"""Returns the rule by which a request's tokens are chosen."""


class ShapeJudge:
    """Computes an output's logits again, in the shapes that were compared.

    A divergence is a tie if the target's two best tokens are nearer than twice the noise (each of them may move by it),
    and if each shape gives the token that it gave in the run: the very token if the shapes are known exactly (`exact`:
    those of rounds in one process are on record), else a token within the same bound. After a tie the output is
    compared with the target's choices that follow the output's own prefix.
    """

    def __init__(self, shapes: RecomputedLogits, choose: Chooser, exact: bool) -> None:
        self._shapes, self._choose, self._exact = shapes, choose, exact

    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        """Return the first error from `position` on, or the first tie if there is no error."""
        evidence = Evidence(self._shapes, record, baseline, self._choose(record), self._exact)
        results = [evidence.judge(position, baseline.output_ids[position], from_baseline=True)]
        for later in range(position + 1, len(record.output_ids)):
            expected = evidence.choice.token(evidence.plain[later], later)
            if results[-1].verdict == "tie" and record.output_ids[later] != expected:
                results.append(evidence.judge(later, expected))
        return results[-1] if results[-1].verdict == "error" else results[0]


class Evidence:
    """One output's scores at all positions [tokens, vocabulary], in every shape; each is computed when it is needed."""

    def __init__(
        self,
        shapes: RecomputedLogits,
        record: RequestRecord,
        baseline: RequestRecord,
        choice: TokenChoice,
        exact: bool,
    ) -> None:
        self._shapes, self._record, self._baseline, self._exact = shapes, record, baseline, exact
        self.choice = choice

    @cached_property
    def plain(self) -> Tensor:
        """Scores in the baseline's shapes: the prompt, then token by token."""
        return self.choice.scores(self._shapes.plain(self._record, self._baseline))

    @cached_property
    def verified(self) -> Tensor:
        """Scores in the shapes of the output's verifications."""
        return self.choice.scores(self._shapes.rounds(self._record))

    @cached_property
    def noise(self) -> float:
        """The largest difference between the two shapes that are compared."""
        return _difference(self.plain, self.verified)

    @cached_property
    def control(self) -> float:
        """The largest difference between plain decoding and two shapes that drafting has no part in."""
        undrafted = self._shapes.single_forward(self._record), self._shapes.control(self._record)
        return max(_difference(self.plain, self.choice.scores(logits)) for logits in undrafted)

    @property
    def bound(self) -> float:
        """The margin up to which the noise can swap two tokens."""
        return 2 * min(self.noise, PLAUSIBLE * self.control)

    def judge(self, position: int, expected: int, from_baseline: bool = False) -> Losslessness:
        """Judge one divergence; `expected` is the baseline's token or, after a tie, the target's own choice."""
        token, scores = self._record.output_ids[position], self.plain[position]
        margin = self.choice.margin(scores, token, expected)
        explained = (
            margin <= self.bound
            and self.choice.are_best(scores, token, expected)
            and self._gives(self.verified, position, token)
            and (not from_baseline or self._gives(self.plain, position, expected))
        )
        # In half precision a tie must be one in float32 too, up to what the lower precision loses.
        precise_margin = None
        if explained and self._shapes.reduced and self._precise is not None:
            precise_margin = self.choice.margin(self._precise[position], token, expected)
            explained = precise_margin <= 2 * _difference(self.plain, self._precise)
        return Losslessness(
            self._record.request_id,
            "tie" if explained else "error",
            position,
            token,
            expected,
            margin,
            self._record.repeat,
            self.noise,
            self.control,
            precise_margin,
        )

    def _gives(self, scores: Tensor, position: int, token: int) -> bool:
        """Return True if a shape chooses `token`, or would within the bound if shapes are not known exactly."""
        row, slack = scores[position], 0.0 if self._exact else self.bound
        return self.choice.token(row, position) == token or self.choice.shortfall(row, position, token) < slack

    @cached_property
    def _precise(self) -> Tensor | None:
        logits = self._shapes.precise(self._record)
        return None if logits is None else self.choice.scores(logits)


def _difference(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max())


def check_all(
    records: Sequence[RequestRecord], baseline: Sequence[RequestRecord], judge: DivergenceJudge
) -> list[Losslessness]:
    """Check every record against the baseline's record of the same request and repeat."""
    by_key = {r.key: r for r in baseline}
    return [check(record, by_key.get(record.key), judge) for record in records]


def summarise_checks(checks: Sequence[Losslessness]) -> dict[str, object]:
    """Return the counts by verdict and the divergences, for `summary.json`.

    `lossless` is True without errors, and None if no request could be compared; `noise` and `control` are the largest
    that were measured, None if nothing diverged.
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
