"""Greedy output against plain autoregressive output, token for token, with near-ties told from errors."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any, Literal

from specbench_kit.decoding.records import RequestRecord

Verdict = Literal["identical", "tie", "error", "prompt differs", "not compared"]
TopTwo = Callable[[list[int]], tuple[tuple[int, int], float]]
"""The target's two best next tokens after a prefix, best first, and their logit margin."""

TIE_MARGINS = {"float32": 1e-4, "float16": 0.0625, "bfloat16": 0.5}
"""Logit margins below which rounding alone may swap the two best tokens, by dtype of the target.

Half precision: four steps of the dtype at logits in [16, 32), a usual size for the best (a step there is 2^-6 in
float16 and 2^-3 in bfloat16): the shape of a forward changes the order of its sums, which moves each of the two
logits by a step or two. float32 keeps every layer's rounding, so its bound is measured and not counted in steps.
On the bundled target the margin moves by at most 8e-6, 0.008 and 0.09 (float32, float16, bfloat16) between
forwards of one, five and all tokens; the bounds leave a factor of 5 to 12 for deeper models and larger logits.
"""


@dataclass(frozen=True, slots=True)
class Losslessness:
    """How one request's output compares with the baseline's.

    At a divergence: `position` in the output (from 0), both tokens there (None where that output has ended) and
    the target's logit margin. `prompt differs` is a later turn of a dialogue whose earlier output diverged;
    `not compared` failed in either run, has no baseline, or comes from a tool that does not name its tokens.
    """

    request_id: str
    verdict: Verdict
    position: int | None = None
    method_token: int | None = None
    baseline_token: int | None = None
    margin: float | None = None


def check(
    record: RequestRecord, baseline: RequestRecord | None, top2: TopTwo, tie_margin: float = TIE_MARGINS["float32"]
) -> Losslessness:
    """Compare one request with its baseline; `top2` is asked only at a divergence.

    A tie needs both tokens to be the target's two best, less than `tie_margin` apart. Outputs are expected to
    hold their end-of-sequence token, so one that merely ends earlier than the other is an error.
    """
    if baseline is None or "error" in (record.finish_reason, baseline.finish_reason) or not record.has_token_ids:
        return Losslessness(record.request_id, "not compared")
    if record.prompt_ids != baseline.prompt_ids:
        return Losslessness(record.request_id, "prompt differs")
    if record.output_ids == baseline.output_ids:
        return Losslessness(record.request_id, "identical")
    return _judge_divergence(record, baseline, top2, tie_margin)


def _judge_divergence(record: RequestRecord, baseline: RequestRecord, top2: TopTwo, tie_margin: float) -> Losslessness:
    position = _common_length(record.output_ids, baseline.output_ids)
    tokens = _token_at(record.output_ids, position), _token_at(baseline.output_ids, position)
    best, margin = top2(record.prompt_ids + record.output_ids[:position])
    tie = margin < tie_margin and set(tokens) == set(best)
    return Losslessness(record.request_id, "tie" if tie else "error", position, *tokens, margin)


def _common_length(left: Sequence[int], right: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _token_at(output_ids: Sequence[int], position: int) -> int | None:
    return output_ids[position] if position < len(output_ids) else None


def check_all(
    records: Sequence[RequestRecord],
    baseline: Sequence[RequestRecord],
    top2: TopTwo,
    tie_margin: float = TIE_MARGINS["float32"],
) -> list[Losslessness]:
    """`check` for every record, paired by request and repeat."""
    by_key = {r.key: r for r in baseline}
    return [check(record, by_key.get(record.key), top2, tie_margin) for record in records]


def summarise_checks(checks: Sequence[Losslessness], tie_margin: float) -> dict[str, Any]:
    """Counts by verdict and the divergences, for `summary.json`.

    `lossless` is True without errors, and None where no request could be compared.
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
        "tie_margin": tie_margin,
        "divergences": [asdict(c) for c in checks if c.verdict in ("tie", "error")],
    }
