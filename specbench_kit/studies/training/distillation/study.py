"""What training a head and training a draft model have in common: time, answers, held-out answers
and records.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypedDict

from torch import nn

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import stated
from specbench_kit.core.user_data import user_folder
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.pair import Pair
from specbench_kit.models.runner import Runner
from specbench_kit.runs import provenance
from specbench_kit.studies.conversations import Conversation
from specbench_kit.studies.training.distillation.answers import (
    SHARD_TEXTS,
    Answer,
    AnswerGenerator,
    TrainingAnswerKey,
    TrainingAnswerStore,
    fill,
    require_fresh,
    teach,
)
from specbench_kit.studies.training.distillation.batches import (
    RoundAcceptance,
    batches,
    epoch,
    is_greedy,
    is_held_out,
    teaches,
)
from specbench_kit.studies.training.distillation.live import LiveResult
from specbench_kit.studies.training.distillation.loop import (
    Checkpoint,
    LossReport,
    StepOptimizer,
    TrainingLoop,
    UnfinishedDraft,
)
from specbench_kit.studies.training.distillation.options import DistillationSettings, Recipe
from specbench_kit.studies.training.distillation.vocabulary import count_tokens
from specbench_kit.traces.trace import TOKEN_IDS, TraceFile

ANSWERING_SHARE = 0.5
"""Share of --minutes in which prompts are answered, unless all are answered before."""
CLOSING_SHARE = 0.1
CLOSING_S = 60.0
"""Share of --minutes that is left for the live evaluation, and its upper bound in seconds."""
MIN_ANSWERS = 10
EVALUATED_ANSWERS = 32
MAX_PROMPT_TOKENS = 768
"""Longer prompts are left out: their states would take most of the memory."""


@dataclass(frozen=True, slots=True)
class TimePlan:
    """The moments, on the monotonic clock, at which answering, training and everything have to
    end.
    """

    answers_until_s: float
    training_until_s: float | None
    end_s: float | None

    @classmethod
    def of(
        cls, minutes: float | None, answer_minutes: float | None, started_s: float
    ) -> "TimePlan":
        """Divide the time that is given, if any."""
        answering = float("inf") if answer_minutes is None else 60 * answer_minutes
        if minutes is None:
            return cls(started_s + answering, None, None)
        whole = 60 * minutes
        closing = min(CLOSING_S, CLOSING_SHARE * whole)
        answering = min(whole, ANSWERING_SHARE * whole if answer_minutes is None else answering)
        return cls(started_s + answering, started_s + whole - closing, started_s + whole)

    def training_s(self) -> float | None:
        """Return how long training may take from now on."""
        return (
            None
            if self.training_until_s is None
            else max(1.0, self.training_until_s - monotonic_s())
        )


class HeldOutAcceptance(TypedDict):
    """The acceptance on answers that were given before and not trained on, by position too."""

    acceptance_length: float
    acceptance: list[float]


class DrafterSummary(TypedDict):
    """What a head or a draft model reached: `held_out` on answers given before, `live` in decoding
    held-out prompts.

    `parameters` are those that a forward reads, without the embedding.
    """

    steps: int
    parameters: int
    vocabulary: int
    held_out: HeldOutAcceptance
    live: LiveResult | None


def summarise(
    model: nn.Module, best: Checkpoint, vocabulary: int, live: LiveResult | None
) -> DrafterSummary:
    """Return what a trained model reached."""
    return {
        "steps": best.steps,
        "parameters": sum(
            weight.numel() for name, weight in model.named_parameters() if "embed" not in name
        ),
        "vocabulary": vocabulary,
        "held_out": {
            "acceptance_length": round(best.acceptance_length, 4),
            "acceptance": [round(rate, 4) for rate in best.acceptance],
        },
        "live": live,
    }


@dataclass(frozen=True, slots=True)
class TrainedDrafter:
    """The folder of a head or a draft model, and its summary."""

    folder: Path
    summary: DrafterSummary


class DrafterLoss(Protocol):
    """The loss of a model on answers, and what it promises on those that are held out."""

    def __call__(self, answers: list[Answer], /) -> LossReport:
        """Return the loss on a batch."""

    def acceptance(self, batches: Sequence[list[Answer]], /) -> RoundAcceptance:
        """Return what would be accepted of the drafts for these answers."""


class Distillation:
    """The answers of one target, and what is drawn from them."""

    def __init__(
        self,
        settings: DistillationSettings,
        pair: Pair,
        layers: Sequence[int],
        plan: TimePlan,
        report: ProgressCallback,
    ) -> None:
        self._settings = settings
        self._pair = pair
        self._layers = tuple(layers)
        self.plan = plan
        self._report = report
        self.sources: dict[str, object] = {}

    def answer(self, dataset: LoadedDataset | None) -> TrainingAnswerStore:
        """Return the store with the answers to the prompts, or those of the trace that the settings
        name.
        """
        store = self._from_trace() if dataset is None else self._from_prompts(dataset)
        usable = sum(1 for answer in self._all(store) if not is_held_out(answer.index))
        require(
            usable >= MIN_ANSWERS,
            f"{usable} answers are too few to train on: give more prompts or --minutes",
        )
        return store

    def _open(self, prompts: str) -> TrainingAnswerStore:
        settings = self._settings
        key = TrainingAnswerKey(
            self.target_hash,
            prompts,
            settings.max_new_tokens,
            settings.sampled_share,
            settings.seed,
            self._layers,
        )
        return TrainingAnswerStore.open(settings.answers or user_folder("answers"), key)

    @cached_property
    def target_hash(self) -> str:
        """Return the hash of the target's files."""
        return str(self._pair.describe(provenance.hash_model)["target"].hash)

    def _from_prompts(self, dataset: LoadedDataset) -> TrainingAnswerStore:
        settings = self._settings
        pair = self._pair
        # `head_library.training_prompts` reads these keys, so that a benchmark can leave the
        # prompts out.
        self.sources = {
            "dataset": stated(dataset.describe()),
            "prompts": [prompt.fingerprint for prompt in dataset.prompts],
        }
        store = self._open(dataset.digest)
        conversations = [
            Conversation(prompt, pair.tokenizer, settings.max_new_tokens)
            for prompt in dataset.prompts
        ]
        runner = self.runner(settings.batch_size, MAX_PROMPT_TOKENS + settings.max_new_tokens)
        generator = AnswerGenerator(
            runner,
            self._layers,
            pair.eos_ids,
            lambda tokens: str(pair.tokenizer.decode(tokens, skip_special_tokens=True)),
            settings.sampled_share,
            settings.seed,
        )
        fill(store, generator, conversations, self.plan.answers_until_s, self._report)
        require(bool(store.shards), "no prompt was answered in the time given: raise --minutes")
        require_fresh(store, runner, self._layers)
        return store

    def _from_trace(self) -> TrainingAnswerStore:
        """Forward the answers of a trace once; raise SkitError if another target gave them."""
        path = self._settings.trace
        assert path is not None
        trace = TraceFile(path)
        trace.header.require(TOKEN_IDS, "a draft learns from the text of answers")
        if trace.model_hash("target") != self.target_hash:
            raise SkitError(
                f"the trace {path} holds answers of another target: name it with --target"
            )
        digest = provenance.hash_file(path)
        self.sources = {
            "dataset": stated(trace.recording.dataset) or None,
            "prompts": trace.recording.prompts,
            "trace": digest,
        }
        store = self._open(digest)
        answered = store.answered()
        texts = [
            (index, request)
            for index, request in enumerate(trace)
            if request.prompt_ids and request.output_ids
        ]
        if not texts:
            raise SkitError(f"the trace {path} holds no answers: record it again")
        longest = max(len(request.prompt_ids) + len(request.output_ids) for _, request in texts)
        runner = self.runner(1, longest)
        waiting = [(index, request) for index, request in texts if index not in answered]
        for first in range(0, len(waiting), SHARD_TEXTS):
            part = waiting[first : first + SHARD_TEXTS]
            store.append(
                [
                    teach(runner, index, text.prompt_ids, text.output_ids, self._layers)
                    for index, text in part
                ]
            )
            self._report("reading the trace", first + len(part), len(waiting))
        return store

    def runner(self, slots: int, length: int) -> Runner:
        """Return a runner of the target whose slots hold `length` tokens."""
        pair = self._pair
        return Runner(
            make_executor(
                pair.target.shell, slots, min(length, pair.target.context), pair.vocabulary
            )
        )

    def _all(self, store: TrainingAnswerStore) -> Iterator[Answer]:
        return (
            answer
            for path in store.shards
            for answer in store.read(path, states=False)
            if teaches(answer)
        )

    def token_counts(self, store: TrainingAnswerStore) -> Counter[int]:
        """Return how often the target chose each token in the answers that are trained on."""
        return count_tokens(answer for answer in self._all(store) if not is_held_out(answer.index))

    def held_out(self, store: TrainingAnswerStore, tokens_per_batch: int) -> list[list[Answer]]:
        """Return batches of greedy answers that are not trained on; without any held out, of some
        that are.
        """
        greedy = (
            answer
            for wanted in (True, False)
            for path in store.shards
            for answer in store.read(path, states=bool(self._layers))
            if is_held_out(answer.index) is wanted and teaches(answer) and is_greedy(answer)
        )
        chosen = list(islice(greedy, EVALUATED_ANSWERS))
        self.held_out_indices = {answer.index for answer in chosen}
        return list(batches(chosen, tokens_per_batch, Random(0)))

    def training_batches(
        self, store: TrainingAnswerStore, recipe: Recipe
    ) -> Iterator[list[Answer]]:
        """Yield batches, epoch after epoch: as many as the recipe says, or without end if the time
        is limited.
        """
        rng = Random(self._settings.seed)
        left_out = {
            index for index in store.answered() if is_held_out(index)
        } | self.held_out_indices
        passes = 0
        while self.plan.training_until_s is not None or passes < recipe.epochs:
            yield from epoch(store, left_out, recipe.tokens_per_batch, bool(self._layers), rng)
            passes += 1

    def planned_batches(self, store: TrainingAnswerStore, recipe: Recipe) -> int:
        """Return about how many batches the recipe's epochs have."""
        tokens = sum(len(answer) for answer in self._all(store) if not is_held_out(answer.index))
        return max(1, round(1.1 * recipe.epochs * tokens / recipe.tokens_per_batch))

    def train(
        self,
        model: nn.Module,
        optimizer: StepOptimizer,
        loss: DrafterLoss,
        held_out: Sequence[list[Answer]],
        store: TrainingAnswerStore,
        recipe: Recipe,
        unfinished: UnfinishedDraft,
        save: Callable[[Path], None],
        tell: Callable[[str], None],
    ) -> Checkpoint:
        """Train a model on the answers, leave it with its best weights, and return how it did with
        them.

        `save` writes the weights into a folder, `tell` is given a line at every checkpoint.
        """
        log = TrainingLog(unfinished.result, tell)

        def evaluate() -> tuple[float, list[float]]:
            acceptance = loss.acceptance(held_out)
            return acceptance.length, acceptance.by_position

        loop = TrainingLoop(
            model,
            optimizer,
            loss,
            evaluate,
            lambda reached: log(reached.sentence),
            lambda: unfinished.keep(save),
            lambda share: self._report("training", round(100 * share), 100),
            self.plan.training_s(),
            self.planned_batches(store, recipe),
        )
        return loop.run(self.training_batches(store, recipe))

    def record(
        self, folder: Path, file: str, store: TrainingAnswerStore, contents: dict[str, Any]
    ) -> None:
        """Write what a draft was made of and how."""
        answers = [answer for answer in self._all(store) if not is_held_out(answer.index)]
        record = {
            "models": stated(self._pair.describe(provenance.hash_model)),
            **self.sources,
            "answers": len(answers),
            "tokens": sum(len(answer.output) for answer in answers),
            "max_new_tokens": self._settings.max_new_tokens,
            "sampled_share": self._settings.sampled_share,
            "minutes": self._settings.minutes,
            **contents,
            **provenance.collect(self._settings.argv),
        }
        (folder / file).write_text(
            json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8"
        )


class TrainingLog:
    """Writes a line per checkpoint beside the result and tells it to the user."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "training.log"
        self._tell = tell

    def __call__(self, sentence: str) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(sentence + "\n")
        self._tell(sentence)
