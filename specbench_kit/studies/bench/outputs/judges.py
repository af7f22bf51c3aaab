"""Judges of a run's outputs: the checks that are possible with local models, with a server, and in a replay."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.methods.base import Method
from specbench_kit.metrics.choices import GreedyChoice, SampledChoice, TokenChoice
from specbench_kit.metrics.distribution import SamplingTally, summarise_match, summarise_tally
from specbench_kit.metrics.losslessness import Losslessness, ShapeJudge, check_all, summarise_checks
from specbench_kit.metrics.shapes import RecomputedLogits, single_forward_logits
from specbench_kit.models.pair import Pair
from specbench_kit.models.runner import Runner

RunDescription = Mapping[str, Any]
"""The content of `run.json`."""
Records = Sequence[RequestRecord]
Verdicts = dict[str, object]
"""The parts `lossless` and `sampling` of a summary; a part that does not apply is None."""


class LocalOutputJudge:
    """Judges outputs with the models that produced them."""

    def __init__(self, pair: Pair, target: Runner) -> None:
        self._pair, self._shapes = pair, RecomputedLogits(target, pair.target.model)

    def judge(self, run: RunDescription, method: Method, records: Records, baseline: Records) -> Verdicts:
        """Compare the outputs with the baseline, or sampled drafts with the target's distribution."""
        config = run["config"]
        sampler = _sampler(config)
        if not sampler.greedy and draws_drafts(method):
            return {"lossless": None, "sampling": summarise_tally(self._tally(records, sampler))}
        if not baseline:
            return {"lossless": None, "sampling": None}
        virtual = config.get("launch", "virtual") == "virtual"

        def choice(record: RequestRecord) -> TokenChoice:
            if sampler.greedy:
                return GreedyChoice()
            return SampledChoice(sampler, RequestRandom(config["seed"], record.request_id))

        judge = ShapeJudge(self._shapes, choice, virtual and method.pipeline is None)
        checks = summarise_checks(check_all(records, baseline, judge))
        return _verdicts(sampler, checks | {"bitwise": virtual and self._shapes.bitwise})

    def _tally(self, records: Records, sampler: Sampler) -> SamplingTally:
        tally = SamplingTally()
        models = self._pair.target.model, self._pair.needed_draft.model
        for record in records:
            if record.output_ids:
                target, draft = (
                    sampler.probabilities(single_forward_logits(model, record, self._pair.vocabulary))
                    for model in models
                )
                tally.add(record, target, draft)
        return tally


class ServedOutputJudge:
    """Judges outputs of a server's target, of which only the plain decoding is known: all tokens have to be equal."""

    def __init__(self, bitwise: bool) -> None:
        self._bitwise = bitwise

    def judge(self, run: RunDescription, method: Method, records: Records, baseline: Records) -> Verdicts:
        """Compare the outputs with the baseline; sampled drafts cannot be judged without the target's probabilities."""
        sampler = _sampler(run["config"])
        if not baseline or (not sampler.greedy and draws_drafts(method)):
            return {"lossless": None, "sampling": None}
        checks = summarise_checks(check_all(records, baseline, _EveryDifferenceIsAnError()))
        return _verdicts(sampler, checks | {"bitwise": self._bitwise})


class _EveryDifferenceIsAnError:
    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        tokens = record.output_ids[position], baseline.output_ids[position]
        return Losslessness(record.request_id, "error", position, *tokens, repeat=record.repeat)


class ReplayOutputJudge:
    """Judges a replay, which has to reproduce the outputs of its trace: no forward runs that could round otherwise."""

    def judge(self, run: RunDescription, method: Method, records: Records, baseline: Records) -> Verdicts:
        """Compare the outputs with the baseline; raise SkitError if they differ."""
        checks = summarise_checks(check_all(records, baseline, _NoDifference())) if baseline else None
        return {"lossless": checks, "sampling": None}


class _NoDifference:
    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        raise SkitError("a replayed output differs from the trace: the trace is damaged, record it again")


def draws_drafts(method: Method) -> bool:
    """Return True if a sampled run of the method accepts drafts by the residual rule.

    Other methods accept the drafted tokens that equal the target's own samples.
    """
    return method.proposal == "sample" and method.pipeline is None and method.drafting.drawn


def _verdicts(sampler: Sampler, checks: dict[str, Any]) -> Verdicts:
    if sampler.greedy:
        return {"lossless": checks, "sampling": None}
    return {"lossless": None, "sampling": summarise_match(checks)}


def _sampler(config: RunDescription) -> Sampler:
    return Sampler(config["temperature"], config["top_p"], config["top_k"])
