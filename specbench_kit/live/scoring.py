"""Frames by which a server scores an output again: what a device asks for, and the evidence that it
reads.
"""

from collections.abc import Sequence

from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.metrics.evidence import ChoiceOfShape, DivergenceEvidence, OutputEvidence


def sampling_message(sampler: Sampler, seed: int, request_id: str) -> messages.Sampling:
    """Return how the target draws the tokens of a request, as a server is told."""
    return messages.Sampling(
        temperature=sampler.temperature,
        top_p=sampler.top_p,
        top_k=sampler.top_k,
        seed=seed,
        request=request_id,
    )


def score_frame(
    name: str,
    record: RequestRecord,
    baseline: RequestRecord,
    position: int,
    sampler: Sampler,
    seed: int,
) -> messages.Score:
    """Return the frame that asks for the scores of an output that differs from its baseline from
    `position` on.
    """
    return messages.Score(
        session=name,
        prompt=record.prompt_ids,
        output=record.output_ids,
        sampling=sampling_message(sampler, seed, record.request_id),
        position=position,
        expected=baseline.output_ids[position],
        rounds=[_shape(step) for step in record.rounds],
        plain=[
            messages.RoundShape(padded=step.padded, forced=step.forced) for step in baseline.rounds
        ],
        forced_first=record.forced_first,
        plain_forced_first=baseline.forced_first,
    )


def _shape(step: RoundRecord) -> messages.RoundShape:
    return messages.RoundShape(
        submitted=step.submitted,
        accepted=step.accepted,
        committed=step.committed,
        parents=step.parents,
        path=step.path,
        padded=step.padded,
        forced=step.forced,
    )


def read_rounds(shapes: Sequence[messages.RoundShape]) -> list[RoundRecord]:
    """Return the rounds of received shapes, without the times that nobody needs here."""
    return [
        RoundRecord(
            drafted=shape.submitted,
            submitted=shape.submitted,
            accepted=shape.accepted,
            committed=shape.committed,
            prefill_s=0.0,
            draft_s=0.0,
            policy_s=0.0,
            link_s=0.0,
            queue_s=0.0,
            verify_s=0.0,
            commit_s=0.0,
            end_s=0.0,
            parents=list(shape.parents),
            path=list(shape.path),
            padded=list(shape.padded),
            forced=shape.forced,
        )
        for shape in shapes
    ]


def scored_frame(
    name: str, evidence: OutputEvidence, forwards: int, seconds: float
) -> messages.Scored:
    """Return the frame that carries evidence, and what it cost."""
    return messages.Scored(
        session=name,
        noise=evidence.noise,
        control=evidence.control,
        precise_noise=evidence.precise_noise,
        divergences=[
            messages.DivergenceScores(
                position=divergence.position,
                token=divergence.token,
                expected=divergence.expected,
                margin=divergence.margin,
                are_best=divergence.are_best,
                verified=messages.ShapeChoice(
                    token=divergence.verified.token, shortfall=divergence.verified.shortfall
                ),
                plain=messages.ShapeChoice(
                    token=divergence.plain.token, shortfall=divergence.plain.shortfall
                ),
                precise_margin=divergence.precise_margin,
            )
            for divergence in evidence.divergences
        ],
        score_us=round(seconds * 1e6),
        forwards=forwards,
    )


def read_evidence(frame: messages.Scored) -> OutputEvidence:
    """Return the evidence that a server sent."""
    return OutputEvidence(
        frame.noise,
        frame.control,
        frame.precise_noise if frame.HasField("precise_noise") else None,
        tuple(
            DivergenceEvidence(
                scores.position,
                scores.token,
                scores.expected,
                scores.margin,
                scores.are_best,
                ChoiceOfShape(scores.verified.token, scores.verified.shortfall),
                ChoiceOfShape(scores.plain.token, scores.plain.shortfall),
                scores.precise_margin if scores.HasField("precise_margin") else None,
            )
            for scores in frame.divergences
        ),
    )
