"""Answers of one model alone, without drafts and outside of every comparison."""

from collections.abc import Mapping

from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.time_limit import NO_LIMIT, TimeLimit
from specbench_kit.deployments.assembly import live_engine
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.models.pair import Pair
from specbench_kit.models.runner import Runner
from specbench_kit.studies.bench.conversations import Conversation, ConversationScript
from specbench_kit.studies.bench.lanes import MethodLane, Sink
from specbench_kit.studies.bench.settings import BenchSettings


def answer_dataset(
    dataset: LoadedDataset,
    runner: Runner,
    pair: Pair,
    settings: BenchSettings,
    sampler: Sampler,
    sink: Sink,
    finished: Mapping[str, RequestRecord] | None = None,
    limit: TimeLimit = NO_LIMIT,
) -> None:
    """Answer every prompt of a dataset with the model of `runner` and pass each finished record to `sink`.

    Requests that are in `finished` are not answered again. The `limit` ends this after the first answer or later.
    """
    engine = live_engine(
        Autoregressive(),
        runner,
        sampler=sampler,
        seed=settings.seed,
        eos_ids=pair.eos_ids,
        batch_size=settings.batch_size,
    )
    lane = MethodLane(
        name="one model alone",
        engine=engine,
        script=ConversationScript(
            [Conversation(prompt, pair.tokenizer, settings.max_new_tokens) for prompt in dataset.prompts],
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
