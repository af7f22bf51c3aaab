"""From prompts or a trace to a head in its folder, and how often it agrees with its target on answers set apart."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.assembly import live_engine
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.head_library import RECORD, folder_for
from specbench_kit.models.heads.files import save_head
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.models.runner import Runner
from specbench_kit.runs import provenance
from specbench_kit.studies.bench.conversations import Conversation
from specbench_kit.studies.training.heads.fit import Text, batched, fit, judge, new_head
from specbench_kit.studies.training.heads.options import HeadTrainingSettings, Recipe
from specbench_kit.traces.trace import TOKEN_IDS, TraceFile

SET_APART = 0.1
FEWEST = 10


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """Where a head lies, and `agreement`: how often its first, second, ... token in a row is the target's."""

    folder: Path
    summary: dict[str, Any]


def train_head(settings: HeadTrainingSettings, dataset: LoadedDataset | None, report: ProgressCallback) -> TrainedHead:
    """Train a head on the target's greedy answers; `dataset` is answered where the settings name no trace."""
    pair = load_pair(settings.target, None, device=settings.device, dtype=settings.dtype)
    target, recipe = pair.target.model, settings.recipe
    if any(not 0 <= layer <= target.config.get_text_config().num_hidden_layers for layer in settings.layers):
        raise SkitError(f"--layers names layers that the target does not have: {settings.layers}")
    texts = list(_recorded(settings, pair) if dataset is None else _answered(settings, pair, dataset, report))
    if len(texts) < FEWEST:
        raise SkitError(f"{len(texts)} answers are too few to train a head on: give at least {FEWEST} prompts")
    random.Random(recipe.seed).shuffle(texts)
    apart = max(1, round(SET_APART * len(texts)))
    head = new_head(target, texts[apart:], settings.vocabulary, recipe.seed, settings.layers, pair.target.source.label)
    fit(head, target, texts[apart:], recipe, lambda share, _: report("training", round(100 * share), 100))
    folder = settings.save_to or folder_for(pair.target.source)
    save_head(head, folder)
    summary = {
        "agreement": _agreement(head, target, texts[:apart], recipe),
        "answers": len(texts) - apart,
        "tokens": sum(len(text.answer) for text in texts[apart:]),
        "parameters": sum(weight.numel() for name, weight in head.named_parameters() if "embed" not in name),
    }
    _write_record(folder, settings, pair, dataset, summary)
    return TrainedHead(folder, summary)


def _answered(
    settings: HeadTrainingSettings, pair: Pair, dataset: LoadedDataset, report: ProgressCallback
) -> Iterator[Text]:
    """The first turns of the prompts, with the target's greedy answers."""
    asked = (Conversation(prompt, pair.tokenizer, settings.max_new_tokens) for prompt in dataset.prompts)
    requests = [request for one in asked if (request := one.next_request()) is not None]
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
            yield from _text(record.prompt_ids, record.output_ids)


def _recorded(settings: HeadTrainingSettings, pair: Pair) -> Iterator[Text]:
    assert settings.trace is not None
    trace = TraceFile(settings.trace)
    trace.header.require(TOKEN_IDS, "a head learns from the text of answers")
    target = pair.describe(provenance.hash_model)["target"]
    if trace.said("models", "target", "hash") != target["hash"]:
        raise SkitError(f"the trace {settings.trace} holds answers of another target: name it with --target")
    for request in trace:
        yield from _text(request.prompt_ids, request.output_ids)


def _text(prompt: Sequence[int], answer: Sequence[int]) -> list[Text]:
    """Nothing can be learned from an answer of one token."""
    return [Text(prompt, answer)] if len(answer) > 1 and prompt else []


@torch.no_grad()
def _agreement(head: Any, target: Any, texts: Sequence[Text], recipe: Recipe) -> list[float]:
    """Over batches alike, of every token in a row where those before it are the target's own."""
    batches = list(batched(texts, recipe.tokens_per_batch, random.Random(0)))
    weights = [sum(len(text.answer) - 1 for text in batch) for batch in batches]
    hits = torch.tensor([[float(hit) for hit in judge(head, target, batch, recipe.steps)[1]] for batch in batches])
    found: list[float] = (hits * torch.tensor(weights)[:, None]).sum(0).div(sum(weights)).tolist()
    return [round(share, 4) for share in found]


def _learned_from(settings: HeadTrainingSettings, dataset: LoadedDataset | None) -> dict[str, Any]:
    """What is told of a head's prompts: see `training_prompts`."""
    if dataset is not None:
        return {"dataset": dataset.describe(), "prompts": [prompt.fingerprint for prompt in dataset.prompts]}
    assert settings.trace is not None
    recorded = TraceFile(settings.trace).header.run
    known = {name: recorded.get(name) for name in ("dataset", "prompts")}
    return {**known, "trace": provenance.hash_file(settings.trace)}


def _write_record(
    folder: Path, settings: HeadTrainingSettings, pair: Pair, dataset: LoadedDataset | None, summary: dict[str, Any]
) -> None:
    record = {
        "models": pair.describe(provenance.hash_model),
        **_learned_from(settings, dataset),
        "max_new_tokens": settings.max_new_tokens,
        "recipe": asdict(settings.recipe),
        **summary,
        **provenance.collect(settings.argv),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2, allow_nan=False) + "\n")
