"""How many answers are right, where a dataset says which are: of the methods, the target and the draft model."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.answers import RULES
from specbench_kit.datasets.base import LoadedDataset, Prompt
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.assembly import live_engine
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.studies.bench.conversations import Conversation, ConversationScript
from specbench_kit.studies.bench.lanes import MethodLane
from specbench_kit.studies.bench.workbench import Workbench

Fields = dict[str, Any]


class GoldAnswers:
    """Judges outputs by the prompts that they answer; `draft` are the counts of the draft model alone."""

    def __init__(self, prompts: Iterable[Prompt], draft: Fields | None = None) -> None:
        self._golds = {prompt.id: prompt.gold for prompt in prompts if prompt.gold}
        self._draft = draft

    def judge(self, records: Sequence[RequestRecord], baseline: Sequence[RequestRecord]) -> Fields:
        """The part `exact_match` of a summary; empty where no prompt has a right answer."""
        if not self._golds:
            return {}
        rules = dict.fromkeys(RULES[gold.rule].words for gold in self._golds.values())
        target = self.count(baseline) if baseline else None
        sides = {"method": self.count(records), "target": target, "draft": self._draft}
        return {"exact_match": {"rule": "; ".join(rules), **sides}}

    def count(self, records: Sequence[RequestRecord]) -> Mapping[str, int]:
        """Requests that were judged, and those whose answer is right."""
        judged = [one for one in records if one.request_id in self._golds and one.finish_reason != "error"]
        right = sum(self._golds[one.request_id].matches(one.text or "") for one in judged)
        return {"judged": len(judged), "correct": right}


def answers(bench: Workbench, dataset: LoadedDataset) -> GoldAnswers:
    """Of a dataset; where that is asked for, the draft model answers it too, outside of every measurement."""
    own = GoldAnswers(dataset.prompts)
    if not bench.settings.draft_answers:
        return own
    if not any(prompt.gold for prompt in dataset.prompts):
        raise SkitError(f"--draft-answers: {dataset.name} does not say which answers are right; leave it out")
    return GoldAnswers(dataset.prompts, dict(own.count(_of_draft(bench, dataset))))


def _of_draft(bench: Workbench, dataset: LoadedDataset) -> list[RequestRecord]:
    settings, tokenizer, found = bench.settings, bench.pair.tokenizer, list[RequestRecord]()
    if "draft" not in bench.runners:
        raise SkitError("--draft-answers: no method here drafts with a draft model; leave it out")
    engine = live_engine(
        Autoregressive(),
        bench.runners["draft"],
        sampler=Sampler(settings.temperature, settings.top_p, settings.top_k),
        seed=settings.seed,
        eos_ids=bench.pair.eos_ids,
        batch_size=settings.batch_size,
    )
    lane = MethodLane(
        name="draft alone",
        engine=engine,
        script=ConversationScript(
            [Conversation(one, tokenizer, settings.max_new_tokens) for one in dataset.prompts], {}
        ),
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
        sinks=[found.append],
    )
    while not lane.done:
        for _ in lane.turn(settings.batch_size):
            pass
    return found
