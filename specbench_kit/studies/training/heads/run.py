"""From prompts or a trace to a draft head in its folder, and what it reaches on held-out prompts."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypedDict

from specbench_kit.core.errors import require
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.methods.eagle import Eagle
from specbench_kit.models.head_library import RECORD, folder_for, named
from specbench_kit.models.heads.config import CONFIG, default_layers
from specbench_kit.models.heads.files import load_head, save_head
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.studies.training.answers.store import AnswerStore
from specbench_kit.studies.training.distillation.live import LiveResult, evaluate_live
from specbench_kit.studies.training.distillation.loop import Checkpoint, TrainingLoop
from specbench_kit.studies.training.distillation.study import Distillation, TimePlan, TrainingLog
from specbench_kit.studies.training.distillation.unfinished import UnfinishedDraft
from specbench_kit.studies.training.distillation.vocabulary import choose_size, choose_tokens
from specbench_kit.studies.training.heads.fit import EVALUATED_STEPS, HeadLoss, HeadOptimizer, layer_config, new_head
from specbench_kit.studies.training.heads.options import HeadRecipe, HeadTrainingSettings


class HeadSummary(TypedDict):
    """What a head reached: `held_out` on answers that the target gave before, `live` in decoding held-out prompts."""

    steps: int
    parameters: int
    vocabulary: int
    held_out: dict[str, object]
    live: LiveResult | None


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """The folder of a head, and its summary."""

    folder: Path
    summary: HeadSummary


def train_head(
    settings: HeadTrainingSettings,
    recipe: HeadRecipe,
    dataset: LoadedDataset | None,
    report: ProgressCallback,
    tell: Callable[[str], None],
) -> TrainedHead:
    """Train a head on the target's answers; `dataset` is answered if the settings name no trace.

    `tell` is given a line at every checkpoint.
    """
    plan = TimePlan.of(settings.minutes, settings.answer_minutes, monotonic_s())
    pair = load_pair(settings.target, None, device=settings.device, dtype=settings.dtype)
    target = pair.target.shell
    depth = target.config.get_text_config().num_hidden_layers
    layers = settings.layers or default_layers(depth)
    require(
        all(0 <= layer <= depth for layer in layers),
        f"--layers names layers that the target does not have: {settings.layers}",
    )
    distillation = Distillation(settings, pair, layers, plan, report)
    store = distillation.answer(dataset)
    folder = settings.save_to or folder_for(pair.target.source)
    unfinished = UnfinishedDraft(folder)
    head = _initial(settings, pair, layers, distillation, store, unfinished.start(resume=settings.resume))
    loss = HeadLoss(head, recipe, target.config.get_text_config().vocab_size)
    log = TrainingLog(folder, tell)
    held_out = distillation.held_out(store, recipe.tokens_per_batch)

    def evaluate() -> tuple[float, list[float]]:
        acceptance = loss.acceptance(held_out)
        return acceptance.length, acceptance.by_position

    def checkpoint(reached: Checkpoint) -> None:
        log(reached.sentence)

    loop = TrainingLoop(
        head,
        HeadOptimizer(head, recipe.learning_rate),
        loss,
        evaluate,
        checkpoint,
        lambda: unfinished.keep(partial(save_head, head)),
        lambda share: report("training", round(100 * share), 100),
        plan.training_s(),
        distillation.planned_batches(store, recipe),
    )
    best = loop.run(distillation.training_batches(store, recipe))
    save_head(head, folder)
    unfinished.remove()
    live = None
    if dataset is not None:
        path = str(folder)
        with_head = load_pair(settings.target, None, others=[named(path)], device=settings.device, dtype=settings.dtype)
        live = evaluate_live(
            with_head, Eagle(k=EVALUATED_STEPS, head=path), EVALUATED_STEPS, dataset.prompts, plan.end_s
        )
    summary: HeadSummary = {
        "steps": best.steps,
        "parameters": sum(weight.numel() for name, weight in head.named_parameters() if "embed" not in name),
        "vocabulary": len(head.d2t),
        "held_out": {
            "acceptance_length": round(best.acceptance_length, 4),
            "acceptance": [round(rate, 4) for rate in best.acceptance],
        },
        "live": live,
    }
    distillation.record(folder, RECORD, store, {"recipe": asdict(recipe), **summary})
    return TrainedHead(folder, summary)


def _initial(
    settings: HeadTrainingSettings,
    pair: Pair,
    layers: tuple[int, ...],
    distillation: Distillation,
    store: AnswerStore,
    folder: Path,
) -> HeadModel:
    """Return the head to train: that of the folder with --resume, else a new one."""
    target = pair.target.model
    if settings.resume and (folder / CONFIG).is_file():
        head = load_head(folder, target).float().requires_grad_(True)
        require(
            head.config.layers == layers,
            f"the head in '{folder}' reads layers {head.config.layers}, not {layers}: train without --resume",
        )
        head.embed_tokens.requires_grad_(False)
        return head
    counts, text = distillation.token_counts(store), target.config.get_text_config()
    layer = layer_config(target)
    # fc, the attention over twice the width, and the feed-forward part, as in `HeadModel`.
    width, kv = layer.hidden_size, layer.num_key_value_heads * layer.head_dim
    body = 3 * width * width + 2 * width * (width + 2 * kv) + width * width + 3 * width * layer.intermediate_size
    active = target.num_parameters(exclude_embeddings=True) + text.vocab_size * width
    size = settings.vocabulary or choose_size(counts, text.vocab_size, width, body, active)
    tokens = choose_tokens(counts, size, text.vocab_size, pair.eos_ids)
    return new_head(target, tokens, settings.seed, layers, pair.target.source.label).float()
