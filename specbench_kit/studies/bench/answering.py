"""Answers of one model alone, outside of every comparison, and how many answers are right by their
references.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from specbench_kit.core.errors import require
from specbench_kit.datasets.answers import ANSWER_RULES, RuleName
from specbench_kit.datasets.base import LoadedDataset, Prompt
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.time_limit import NO_LIMIT, TimeLimit
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.metrics.run_summary import AnswerCounts, ExactMatch
from specbench_kit.models.pair import Pair
from specbench_kit.models.runner import Runner
from specbench_kit.studies.bench.lanes import MethodLane, Sink
from specbench_kit.studies.bench.workbench import Workbench
from specbench_kit.studies.conversations import Conversation, ConversationScript


class AnswerSettings(Protocol):
    """What a model that answers alone is asked for."""

    @property
    def max_new_tokens(self) -> int:
        """The largest number of tokens of an answer."""

    @property
    def batch_size(self) -> int:
        """The number of prompts that are answered together."""

    @property
    def seed(self) -> int:
        """The seed of sampled tokens."""


def answer_dataset(
    dataset: LoadedDataset,
    runner: Runner,
    pair: Pair,
    settings: AnswerSettings,
    sampler: Sampler,
    sink: Sink,
    finished: Mapping[str, RequestRecord] | None = None,
    limit: TimeLimit = NO_LIMIT,
) -> None:
    """Answer every prompt of a dataset with the model of `runner` and pass each finished record to
    `sink`.

    Requests that are in `finished` are not answered again. The `limit` ends this after the first
    answer or later.
    """
    setup = DecodingSetup(
        sampler=sampler, seed=settings.seed, eos_ids=pair.eos_ids, batch_size=settings.batch_size
    )
    loop = local_loop(Autoregressive(), runner, setup=setup)
    lane = MethodLane(
        name="one model alone",
        loop=loop,
        script=ConversationScript(
            [
                Conversation(prompt, pair.tokenizer, settings.max_new_tokens)
                for prompt in dataset.prompts
            ],
            finished or {},
        ),
        decode=lambda ids: str(pair.tokenizer.decode(ids, skip_special_tokens=True)),
        sinks=[sink],
    )
    limit.start()
    has_answer = False
    while not lane.done:
        for record in lane.turn(1):
            has_answer |= record.finish_reason != "error"
        if has_answer and limit.is_over:
            return


class GoldAnswers:
    """Judges outputs of at most `max_new_tokens` by the reference answers of their prompts.

    `draft` are the counts of the draft model alone; `rule` reads the answers instead of the prompts' own rules.
    """

    def __init__(
        self,
        prompts: Iterable[Prompt],
        max_new_tokens: int,
        draft: AnswerCounts | None = None,
        rule: RuleName | None = None,
    ) -> None:
        golds = {prompt.id: prompt.gold for prompt in prompts if prompt.gold}
        self._golds = {name: replace(gold, rule=rule or gold.rule) for name, gold in golds.items()}
        self._max_new_tokens = max_new_tokens
        self._draft = draft

    def judge(
        self, records: Sequence[RequestRecord], baseline: Sequence[RequestRecord]
    ) -> ExactMatch | None:
        """Return how many answers match, or None if no prompt has a reference answer."""
        if not self._golds:
            return None
        rules = dict.fromkeys(ANSWER_RULES[gold.rule].words for gold in self._golds.values())
        target = self.count(baseline) if baseline else None
        return ExactMatch(
            "; ".join(rules), self.count(records), target, self._draft, self._max_new_tokens
        )

    def count(self, records: Sequence[RequestRecord]) -> AnswerCounts:
        """Count the records that have a reference answer, those that match it, and those that the
        limit cut short.
        """
        judged = [
            record
            for record in records
            if record.request_id in self._golds and record.finish_reason != "error"
        ]
        correct = sum(
            self._golds[record.request_id].matches(record.text or "") for record in judged
        )
        cut = sum(record.finish_reason == "length" for record in judged)
        return AnswerCounts(len(judged), correct, cut)


def gold_answers(bench: Workbench, dataset: LoadedDataset) -> GoldAnswers:
    """Return the judge of a dataset's answers; with `draft_answers`, first let the draft model
    answer it alone.
    """
    settings = bench.settings
    answers = GoldAnswers(dataset.prompts, settings.max_new_tokens, rule=settings.answer_rule)
    if not settings.draft_answers:
        return answers
    require(
        "draft" in bench.runners,
        "--draft-answers: no method here drafts with a draft model; leave it out",
    )
    records: list[RequestRecord] = []
    answer_dataset(
        dataset, bench.runners["draft"], bench.pair, settings, bench.sampler, records.append
    )
    return GoldAnswers(
        dataset.prompts, settings.max_new_tokens, answers.count(records), settings.answer_rule
    )
