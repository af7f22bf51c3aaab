"""What a bench can say for the outputs of its runs, with both models still at hand."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

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

Fields = Mapping[str, Any]
Records = Sequence[RequestRecord]
Verdicts = dict[str, Any]


class LocalOutputJudge:
    """Judges outputs by the models that made them."""

    def __init__(self, pair: Pair, target: Runner) -> None:
        self._pair, self._shapes = pair, RecomputedLogits(target, pair.target.model)

    def judge(self, run: Fields, method: Method, records: Records, baseline: Records) -> Verdicts:
        """The parts `lossless` and `sampling` of a summary; None for what does not apply."""
        sampler = _sampler(run["config"])
        if not sampler.greedy and draws_drafts(method):
            return {"lossless": None, "sampling": summarise_tally(self._tally(records, sampler))}
        found = self._compare(run["config"], method, records, baseline) if baseline else None
        if sampler.greedy:
            return {"lossless": found, "sampling": None}
        return {"lossless": None, "sampling": summarise_match(found) if found else None}

    def _compare(self, config: Fields, method: Method, records: Records, baseline: Records) -> Verdicts:
        virtual = config.get("launch", "virtual") == "virtual"
        bitwise = virtual and self._shapes.bitwise
        exact = virtual and method.pipeline is None
        judge = ShapeJudge(self._shapes, partial(_choice, _sampler(config), config["seed"]), exact)
        return summarise_checks(check_all(records, baseline, judge)) | {"bitwise": bitwise}

    def _tally(self, records: Records, sampler: Sampler) -> SamplingTally:
        tally = SamplingTally()
        for record in records:
            if record.output_ids:
                tally.add(record, *(self._distributions(model, record, sampler) for model in self._models))
        return tally

    @property
    def _models(self) -> tuple[Any, Any]:
        return self._pair.target.model, self._pair.needed_draft.model

    def _distributions(self, model: Any, record: RequestRecord, sampler: Sampler) -> Tensor:
        return sampler.probabilities(single_forward_logits(model, record, self._pair.vocabulary))


class ServedOutputJudge:
    """Of a target elsewhere only its own plain decoding is known: outputs have to be the same, token for token."""

    def __init__(self, bitwise: bool) -> None:
        self._bitwise = bitwise

    def judge(self, run: Fields, method: Method, records: Records, baseline: Records) -> Verdicts:
        """As `LocalOutputJudge`; of drafts drawn at random nothing can be said without the target's probabilities."""
        sampler = _sampler(run["config"])
        if not baseline or (not sampler.greedy and draws_drafts(method)):
            return {"lossless": None, "sampling": None}
        found = summarise_checks(check_all(records, baseline, _Different())) | {"bitwise": self._bitwise}
        if sampler.greedy:
            return {"lossless": found, "sampling": None}
        return {"lossless": None, "sampling": summarise_match(found)}


class _Different:
    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        tokens = record.output_ids[position], baseline.output_ids[position]
        return Losslessness(record.request_id, "error", position, *tokens, repeat=record.repeat)


class ReplayOutputJudge:
    """A replay gives the outputs of its trace: there is nothing that rounding could change."""

    def judge(self, run: Fields, method: Method, records: Records, baseline: Records) -> Verdicts:
        """As `LocalOutputJudge`; any divergence is damage."""
        found = summarise_checks(check_all(records, baseline, _Intact())) if baseline else None
        return {"lossless": found, "sampling": None}


class _Intact:
    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        raise SkitError("a replayed output differs from the trace: the trace is damaged, record it again")


def draws_drafts(method: Method) -> bool:
    """Whether a sampled run of it accepts drafts by the residual rule, rather than matching the target's own draws."""
    return method.proposal == "sample" and method.pipeline is None and method.drafting.drawn


def _sampler(config: Fields) -> Sampler:
    return Sampler(config["temperature"], config["top_p"], config["top_k"])


def _choice(sampler: Sampler, seed: int, record: RequestRecord) -> TokenChoice:
    return GreedyChoice() if sampler.greedy else SampledChoice(sampler, RequestRandom(seed, record.request_id))
