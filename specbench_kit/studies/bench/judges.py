"""Judges of a run's outputs: the checks that are possible with local models, with a server, and in
a replay.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.constraint import Allowed, GrammarSpec
from specbench_kit.decoding.drafting.base import DRAFT
from specbench_kit.decoding.masking import mask_logits
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.methods.base import Method
from specbench_kit.metrics.distribution import (
    RESIDUAL,
    SamplingTally,
    summarise_match,
    summarise_tally,
)
from specbench_kit.metrics.evidence import (
    NoEvidence,
    RemoteJudge,
    ShapeJudge,
    TokenChoice,
    choice_of,
)
from specbench_kit.metrics.losslessness import (
    LosslessCounts,
    Losslessness,
    check_all,
    summarise_checks,
)
from specbench_kit.metrics.run_summary import OutputVerdicts
from specbench_kit.metrics.shapes import (
    AllowedBefore,
    RecomputedLogits,
    single_forward_logits,
)
from specbench_kit.models.runner import Runner
from specbench_kit.runs.document import RunConfig, RunDocument

if TYPE_CHECKING:
    from specbench_kit.models.pair import Pair

Records = Sequence[RequestRecord]


AllowedAlong = Callable[[str, RequestRecord], Sequence[Allowed]]
"""Returns what a grammar allowed before each token of an output, given the digest of its dataset."""


class LocalOutputJudge:
    """Judges outputs with the models that produced them, masked as they were by what was `allowed`
    along each output, if that was anything less than all.
    """

    def __init__(self, pair: "Pair", target: Runner, allowed: AllowedAlong | None = None) -> None:
        self._pair = pair
        self._shapes = RecomputedLogits(target, pair.target.shell)
        self._allowed = allowed

    def judge(
        self, run: RunDocument, method: Method, records: Records, baseline: Records
    ) -> OutputVerdicts:
        """Compare the outputs with the baseline, or sampled drafts with the target's
        distribution.
        """
        config = run.config
        sampler = _sampler(config)
        allowed = None if self._allowed is None else partial(self._allowed, str(run.dataset.digest))
        if not sampler.greedy and method.draws_tokens:
            # The draft's distributions are computed again, which needs a draft that follows from
            # the text alone.
            by_model = (
                list(method.drafting.models) == [DRAFT]
                and self._pair.needed_draft.translation is None
            )
            rule = TESTED_RULES.get(method.verification, "siblings")
            rule = "own-distributions" if method.own_distributions else rule
            sampling = (
                summarise_tally(
                    self._tally(
                        records, sampler, sampler.of_likeliest(config.draft_top_n), rule, allowed
                    ),
                    lossy=bool(config.lossy),
                )
                if by_model
                else None
            )
            return OutputVerdicts(sampling=sampling)
        if not baseline:
            return OutputVerdicts()
        virtual = config.launch == "virtual"

        def choice(record: RequestRecord) -> TokenChoice:
            return choice_of(sampler, config.seed or 0, record.request_id)

        exact = virtual and method.pipeline is None
        shapes = self._shapes if allowed is None else self._shapes.under(allowed)
        judge = _DifferentByRule() if config.lossy else ShapeJudge(shapes, choice, exact)
        checks = summarise_checks(check_all(records, baseline, judge))
        checks.bitwise = virtual and self._shapes.bitwise
        checks.lossy = bool(config.lossy)
        return _verdicts(sampler, checks)

    def _tally(
        self,
        records: Records,
        sampler: Sampler,
        drafts: Sampler,
        rule: str,
        allowed: AllowedBefore | None = None,
    ) -> SamplingTally:
        tally = SamplingTally(rule)
        models = (sampler, self._pair.target.model), (drafts, self._pair.needed_draft.model)
        for record in records:
            if record.output_ids:
                logits = (
                    single_forward_logits(model, record, self._pair.vocabulary)
                    for _, model in models
                )
                if allowed is not None:
                    before = allowed(record)
                    logits = (mask_logits(of_model, before) for of_model in logits)
                target, draft = (
                    own.probabilities(of_model)
                    for (own, _), of_model in zip(models, logits, strict=True)
                )
                tally.add(record, target, draft)
        return tally


TESTED_RULES = {"token": RESIDUAL, "block": "block"}
"""The rule for drawn drafts by what a method calls its verification; the children of a tree's node
are `siblings`.
"""

GrammarAlong = Callable[[str, RequestRecord], GrammarSpec | None]
"""Returns the grammar that an output followed, given the digest of its dataset."""
MakeJudge = Callable[[Sampler, int, Callable[[RequestRecord], GrammarSpec | None]], RemoteJudge]
"""Returns the judge of outputs for a sampler, a seed and the grammars that they followed."""


def _no_grammar(_: str, __: RequestRecord) -> None:
    """Return None: no output followed a grammar."""


class ServedOutputJudge:
    """Judges outputs of a server's target by the evidence that the server gives; without a server
    there is none.
    """

    def __init__(
        self,
        bitwise: bool,
        make_judge: MakeJudge | None = None,
        grammar_of: GrammarAlong = _no_grammar,
    ) -> None:
        self._bitwise = bitwise
        self._make_judge = make_judge
        self._grammar_of = grammar_of

    def judge(
        self, run: RunDocument, method: Method, records: Records, baseline: Records
    ) -> OutputVerdicts:
        """Compare the outputs with the baseline; sampled drafts cannot be judged without the
        target's probabilities.
        """
        config = run.config
        sampler = _sampler(config)
        if not baseline or (not sampler.greedy and method.draws_tokens):
            return OutputVerdicts()
        judge = (
            self._make_judge(
                sampler, config.seed or 0, partial(self._grammar_of, str(run.dataset.digest))
            )
            if self._make_judge
            else NoEvidence(self._bitwise)
        )
        checks = summarise_checks(check_all(records, baseline, judge))
        checks.bitwise = self._bitwise
        checks.scoring = judge.cost if judge.cost.outputs else None
        return _verdicts(sampler, checks)


class ReplayOutputJudge:
    """Judges a replay, which has to reproduce the outputs of its trace: no forward runs that could
    round otherwise.
    """

    def judge(
        self, run: RunDocument, method: Method, records: Records, baseline: Records
    ) -> OutputVerdicts:
        """Compare the outputs with the baseline; raise SkitError if they differ."""
        checks = (
            summarise_checks(check_all(records, baseline, _NoDifference())) if baseline else None
        )
        return OutputVerdicts(checks)


class _DifferentByRule:
    """Takes every difference for what a lossy rule does: it needs no evidence, and none would tell
    it from rounding.
    """

    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        tokens = record.output_ids[position], baseline.output_ids[position]
        return Losslessness(record.request_id, "error", position, *tokens, repeat=record.repeat)


class _NoDifference:
    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        raise SkitError(
            "a replayed output differs from the trace: the trace is damaged, record it again"
        )


def _verdicts(sampler: Sampler, checks: LosslessCounts) -> OutputVerdicts:
    if sampler.greedy:
        return OutputVerdicts(lossless=checks)
    return OutputVerdicts(sampling=summarise_match(checks))


def _sampler(config: RunConfig) -> Sampler:
    return Sampler(config.temperature or 0.0, config.top_p or 1.0, config.top_k or 0)
