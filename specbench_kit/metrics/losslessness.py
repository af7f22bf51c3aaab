"""Outputs compared with plain autoregressive ones token for token; a tie must be explained by
measured rounding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, Protocol

from msgspec import Meta, Struct, field, structs

from specbench_kit.core.typed_json import Count
from specbench_kit.decoding.records import RequestRecord

CLEARLY_ABOVE = 4.0
"""Ratio of a margin to what an engine's measured rounding explains from which it is an error, and
no rare rounding.
"""
OutputVerdict = Literal["identical", "tie", "error", "unjudged", "prompt differs", "not compared"]


class Losslessness(Struct, frozen=True):
    """The comparison of one request's output with the baseline's.

    Position, tokens and margin are those of the divergence that decided: the first error, or the
    first tie if there is no error.
    """

    request_id: Annotated[str, Meta(description="id of the request")]
    verdict: Annotated[
        OutputVerdict,
        Meta(
            description="'tie' if rounding explains the difference, 'error' if it does not, 'unjudged' if too "
            "little is known of the target's rounding; 'prompt differs' for a later turn of a "
            "dialogue whose earlier output diverged; 'not compared' for a request that failed in "
            "either run, has no baseline, or comes from a tool that does not name its tokens"
        ),
    ]
    position: Annotated[
        int | None,
        Meta(
            description="position in the output, from 0, of the divergence that decided; null if there is "
            "none"
        ),
    ] = None
    method_token: Annotated[
        int | None,
        Meta(
            description="id of the method's token there; null if its output has ended, or if no token is "
            "known"
        ),
    ] = None
    baseline_token: Annotated[
        int | None,
        Meta(
            description="id of plain decoding's token there; null if its output has ended, or if no token is "
            "known"
        ),
    ] = None
    margin: Annotated[
        float | None,
        Meta(
            description="distance of the two tokens' scores in plain decoding's shape of forward, in logits, "
            "or in probability if outputs are sampled; null if they were not scored"
        ),
    ] = None
    repeat: Annotated[int, Meta(description="number of the request's repetition, from 0")] = 0
    noise: Annotated[
        float | None,
        Meta(
            description="largest difference between the scores of plain decoding and of the verifications "
            "along the output, in the margin's unit; of another engine the largest move of the "
            "margin between its two likeliest tokens from one shape of forwards to the next; null "
            "if nothing was scored"
        ),
    ] = None
    control: Annotated[
        float | None,
        Meta(
            description="largest difference between the scores of plain decoding, the same in a batch and one "
            "forward of everything, in the margin's unit; null if nothing was scored"
        ),
    ] = None
    reason: Annotated[
        str | None,
        Meta(description="why a difference is unjudged; empty or null for other verdicts"),
    ] = ""


class ScoringCost(Struct):
    """What another process did to judge outputs."""

    outputs: Annotated[int, Meta(description="outputs that were scored")] = 0
    seconds: Annotated[float, Meta(description="seconds that scoring them took")] = 0.0
    forwards: Annotated[
        int,
        Meta(
            description="forwards of the target that scoring took; 0 for an engine, which does not say"
        ),
    ] = 0


class OutputCounts(Struct, kw_only=True):
    """The numbers of outputs that were compared with the baseline's, token for token, by what was
    found.
    """

    compared: Annotated[
        Count,
        Meta(description="outputs that were compared: identical, ties, errors and unjudged ones"),
    ]
    identical: Annotated[Count, Meta(description="outputs with the baseline's tokens")]
    ties: Annotated[Count, Meta(description="outputs whose difference is explained by rounding")]
    errors: Annotated[Count, Meta(description="outputs whose difference rounding does not explain")]
    unjudged: Annotated[
        Count, Meta(description="outputs that differ where nothing is known of rounding")
    ] = 0
    lossy: Annotated[
        bool, Meta(description="whether a rule of verification was named that lets outputs differ")
    ] = False


class LosslessCounts(OutputCounts, kw_only=True):
    """The comparison of all outputs with the baseline's, token for token."""

    lossless: Annotated[
        bool | None, Meta(description="true without errors, null if it is not known")
    ] = None
    prompt_differs: Annotated[
        Count,
        Meta(
            description="later turns of dialogues whose earlier output diverged, which are not compared"
        ),
    ] = 0
    not_compared: Annotated[
        Count,
        Meta(
            description="outputs that cannot be compared: failed in either run, without a baseline, or "
            "without known tokens"
        ),
    ] = 0
    noise: Annotated[
        float | None,
        Meta(
            description="largest noise of all outputs that were scored, as their divergences define it; null "
            "if none was"
        ),
    ] = None
    control: Annotated[
        float | None,
        Meta(
            description="largest control of all outputs that were scored, as their divergences define it; "
            "null if none was"
        ),
    ] = None
    bitwise: Annotated[
        bool,
        Meta(
            description="whether the target's logits do not depend on the shape of a forward, so that no "
            "difference is rounding"
        ),
    ] = False
    scoring: Annotated[
        ScoringCost | None,
        Meta(description="what another process did to judge outputs; null if none did"),
    ] = None
    divergences: Annotated[
        list[Losslessness],
        Meta(description="the outputs that differ: ties, errors and unjudged ones"),
    ] = field(default_factory=list)


class DivergenceJudge(Protocol):
    """Decides on an output that differs from its baseline's."""

    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        """Return `tie` if rounding explains the differences from `position` on, `error` if not,
        else `unjudged`.
        """


@dataclass(frozen=True, slots=True)
class KeptVerdicts:
    """Judges by what the run's own check found, by request and repeat; a difference that it did not
    see is an error.
    """

    by_request: Mapping[tuple[str, int], OutputVerdict]

    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        verdict = self.by_request.get(record.key, "error")
        return Losslessness(record.request_id, verdict, position, repeat=record.repeat)


def check(
    record: RequestRecord, baseline: RequestRecord | None, judge: DivergenceJudge
) -> Losslessness:
    """Compare one request with its baseline; the judge is asked only at a divergence.

    Outputs should hold their end-of-sequence token, so an output that merely ends before the other
    is an error.
    """
    result = partial(Losslessness, record.request_id, repeat=record.repeat)
    if (
        baseline is None
        or "error" in (record.finish_reason, baseline.finish_reason)
        or not record.has_token_ids
    ):
        return result("not compared")
    if record.prompt_ids != baseline.prompt_ids:
        return result("prompt differs")
    if record.output_ids == baseline.output_ids:
        return result("identical")
    outputs = record.output_ids, baseline.output_ids
    shorter = min(map(len, outputs))
    position = next(
        (index for index in range(shorter) if outputs[0][index] != outputs[1][index]), shorter
    )
    if position == shorter:  # one output ends where the other goes on
        return result(
            "error", position, *(ids[position] if position < len(ids) else None for ids in outputs)
        )
    return judge.judge(record, baseline, position)


def check_all(
    records: Sequence[RequestRecord], baseline: Sequence[RequestRecord], judge: DivergenceJudge
) -> list[Losslessness]:
    """Check every record against the baseline's record of the same request and repeat."""
    by_key = {r.key: r for r in baseline}
    return [check(record, by_key.get(record.key), judge) for record in records]


def summarise_checks(checks: Sequence[Losslessness]) -> LosslessCounts:
    """Return the counts by verdict and the divergences.

    `lossless` is True if there are neither errors nor unjudged outputs, False with errors, and None if that is not
    known; `noise` and `control` are the largest that were measured, None if nothing was.
    """
    counts = count_outputs(checks)
    lossless = None
    if counts.errors:
        lossless = False
    elif counts.compared and not counts.unjudged:
        lossless = True
    return LosslessCounts(
        **structs.asdict(counts),
        lossless=lossless,
        prompt_differs=sum(c.verdict == "prompt differs" for c in checks),
        not_compared=sum(c.verdict == "not compared" for c in checks),
        noise=max((c.noise for c in checks if c.noise is not None), default=None),
        control=max((c.control for c in checks if c.control is not None), default=None),
        divergences=[c for c in checks if c.verdict in ("tie", "error", "unjudged")],
    )


def count_outputs(checks: Sequence[Losslessness], *, lossy: bool = False) -> OutputCounts:
    """Return how many outputs were compared, and with which verdict."""
    verdicts = [c.verdict for c in checks]
    identical, ties, errors, unjudged = (
        verdicts.count(v) for v in ("identical", "tie", "error", "unjudged")
    )
    return OutputCounts(
        compared=identical + ties + errors + unjudged,
        identical=identical,
        ties=ties,
        errors=errors,
        unjudged=unjudged,
        lossy=lossy,
    )
