"""From prompts or a trace to a draft head in its folder, and its agreement with the target on held-out answers."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

import torch
from transformers import PreTrainedModel

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.assembly import live_engine
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.head_library import RECORD, folder_for
from specbench_kit.models.heads.files import save_head
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.models.runner import Runner
from specbench_kit.runs import provenance
from specbench_kit.studies.bench.conversations import Conversation
from specbench_kit.studies.training.heads.fit import TrainingText, fit, losses_and_hits, make_batches, new_head
from specbench_kit.studies.training.heads.options import HeadTrainingSettings, Recipe
from specbench_kit.traces.trace import TOKEN_IDS, TraceFile

HELD_OUT_SHARE = 0.1
MIN_ANSWERS = 10


class HeadSummary(TypedDict):
    """The numbers of answers and tokens that a head was trained on, its size, and its agreement with the target.

    `agreement` are the shares of held-out positions at which the head's first, second, ... token equals the target's.
    """

    agreement: list[float]
    answers: int
    tokens: int
    parameters: int


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """The folder of a head, and its summary."""

    folder: Path
    summary: HeadSummary


def train_head(settings: HeadTrainingSettings, dataset: LoadedDataset | None, report: ProgressCallback) -> TrainedHead:
    """Train a head on the target's greedy answers; `dataset` is answered if the settings name no trace."""
    pair = load_pair(settings.target, None, device=settings.device, dtype=settings.dtype)
    target, recipe = pair.target.model, settings.recipe
    if any(not 0 <= layer <= target.config.get_text_config().num_hidden_layers for layer in settings.layers):
        raise SkitError(f"--layers names layers that the target does not have: {settings.layers}")
    answers = _read_trace(settings, pair) if dataset is None else _answer(settings, pair, dataset, report)
    texts = [text for text in answers if len(text.answer) > 1 and text.prompt]  # one token has nothing to draft
    if len(texts) < MIN_ANSWERS:
        raise SkitError(f"{len(texts)} answers are too few to train a head on: give at least {MIN_ANSWERS} prompts")
    random.Random(recipe.seed).shuffle(texts)
    held_out = max(1, round(HELD_OUT_SHARE * len(texts)))
    test, training = texts[:held_out], texts[held_out:]
    head = new_head(target, training, settings.vocabulary, recipe.seed, settings.layers, pair.target.source.label)
    fit(head, target, training, recipe, lambda share, _: report("training", round(100 * share), 100))
    folder = settings.save_to or folder_for(pair.target.source)
    save_head(head, folder)
    # `head_library.learned_from` reads these keys, so that a benchmark can exclude the prompts.
    sources: dict[str, object] = {}
    if dataset is not None:
        sources |= {"dataset": dataset.describe(), "prompts": [prompt.fingerprint for prompt in dataset.prompts]}
    else:
        assert settings.trace is not None
        run = TraceFile(settings.trace).header.run
        sources |= {name: run.get(name) for name in ("dataset", "prompts")}
        sources["trace"] = provenance.hash_file(settings.trace)
    summary: HeadSummary = {
        "agreement": _agreement(head, target, test, recipe),
        "answers": len(training),
        "tokens": sum(len(text.answer) for text in training),
        "parameters": sum(weight.numel() for name, weight in head.named_parameters() if "embed" not in name),
    }
    record = {
        "models": pair.describe(provenance.hash_model),
        **sources,
        "max_new_tokens": settings.max_new_tokens,
        "recipe": asdict(recipe),
        **summary,
        **provenance.collect(settings.argv),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2, allow_nan=False) + "\n")
    return TrainedHead(folder, summary)


def _answer(
    settings: HeadTrainingSettings, pair: Pair, dataset: LoadedDataset, report: ProgressCallback
) -> Iterator[TrainingText]:
    """Yield the first turns of the prompts with the target's greedy answers."""
    conversations = (Conversation(prompt, pair.tokenizer, settings.max_new_tokens) for prompt in dataset.prompts)
    requests = [request for conversation in conversations if (request := conversation.next_request()) is not None]
    longest = max(len(request.prompt_ids) for request in requests) + settings.max_new_tokens
    executor = make_executor(pair.target.model, settings.batch_size, min(longest, pair.target.context), pair.vocabulary)
    engine = live_engine(
        Autoregressive(),
        Runner(executor),
        sampler=Sampler(),
        seed=settings.recipe.seed,
        eos_ids=pair.eos_ids,
        batch_size=settings.batch_size,
    )
    for request in requests:
        engine.submit(request)
    done = 0
    while not engine.idle:
        for record in engine.step():
            done += 1
            report("answering", done, len(requests))
            yield TrainingText(record.prompt_ids, record.output_ids)


def _read_trace(settings: HeadTrainingSettings, pair: Pair) -> Iterator[TrainingText]:
    """Yield the prompts and answers of a trace; raise SkitError if another target answered."""
    assert settings.trace is not None
    trace = TraceFile(settings.trace)
    trace.header.require(TOKEN_IDS, "a head learns from the text of answers")
    target = pair.describe(provenance.hash_model)["target"]
    if trace.provenance("models", "target", "hash") != target["hash"]:
        raise SkitError(f"the trace {settings.trace} holds answers of another target: name it with --target")
    for request in trace:
        yield TrainingText(request.prompt_ids, request.output_ids)


@torch.no_grad()
def _agreement(head: HeadModel, target: PreTrainedModel, texts: Sequence[TrainingText], recipe: Recipe) -> list[float]:
    """Return the share of equal top tokens by draft step, given that the tokens before are the target's own."""
    batches = list(make_batches(texts, recipe.tokens_per_batch, random.Random(0)))
    weights = [sum(len(text.answer) - 1 for text in batch) for batch in batches]
    hits = torch.tensor(
        [[float(hit) for hit in losses_and_hits(head, target, batch, recipe.steps)[1]] for batch in batches]
    )
    shares: list[float] = (hits * torch.tensor(weights)[:, None]).sum(0).div(sum(weights)).tolist()
    return [round(share, 4) for share in shares]
