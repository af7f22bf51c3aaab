"""From prompts or a trace to a small draft model in its folder, and what it reaches on held-out prompts."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from specbench_kit.core.progress import ProgressCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.models.draft_library import trained_folder
from specbench_kit.models.drafts.reduced import is_reduced_draft, load_draft, new_draft, require_layers, save_draft
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.studies.training.answers.store import AnswerStore
from specbench_kit.studies.training.distillation.live import LiveResult, evaluate_live
from specbench_kit.studies.training.distillation.loop import Checkpoint, TrainingLoop
from specbench_kit.studies.training.distillation.study import Distillation, TimePlan, TrainingLog
from specbench_kit.studies.training.distillation.unfinished import UnfinishedDraft
from specbench_kit.studies.training.distillation.vocabulary import choose_size, choose_tokens
from specbench_kit.studies.training.drafts.fit import EVALUATED_LENGTH, DraftLoss, DraftOptimizer
from specbench_kit.studies.training.drafts.options import DraftRecipe, DraftTrainingSettings

RECORD = "training.json"


class DraftSummary(TypedDict):
    """What a draft model reached: `held_out` on answers given before, `live` in decoding held-out prompts.

    `parameters` are those that a forward reads, without the embedding.
    """

    steps: int
    parameters: int
    vocabulary: int
    held_out: dict[str, object]
    live: LiveResult | None


@dataclass(frozen=True, slots=True)
class TrainedDraft:
    """The folder of a draft model, and its summary."""

    folder: Path
    summary: DraftSummary


def train_draft(
    settings: DraftTrainingSettings,
    recipe: DraftRecipe,
    dataset: LoadedDataset | None,
    report: ProgressCallback,
    tell: Callable[[str], None],
) -> TrainedDraft:
    """Train a draft model on the target's answers; `dataset` is answered if the settings name no trace.

    `tell` is given a line at every checkpoint.
    """
    plan = TimePlan.of(settings.minutes, settings.answer_minutes, monotonic_s())
    pair = load_pair(settings.target, None, device=settings.device, dtype=settings.dtype)
    require_layers(pair.target.shell, settings.layers)
    distillation = Distillation(settings, pair, (), plan, report)
    folder = settings.save_to or trained_folder(pair.target.source, "draft")
    store = distillation.answer(dataset)
    unfinished = UnfinishedDraft(folder)
    draft = _initial(settings, pair, distillation, store, unfinished.start(resume=settings.resume))
    loss = DraftLoss(draft, recipe)
    log = TrainingLog(folder, tell)
    held_out = distillation.held_out(store, recipe.tokens_per_batch)
    if not settings.resume:
        loss.calm(held_out[0])

    def evaluate() -> tuple[float, list[float]]:
        acceptance = loss.acceptance(held_out)
        return acceptance.length, acceptance.by_position

    def checkpoint(reached: Checkpoint) -> None:
        log(reached.sentence)

    loop = TrainingLoop(
        draft,
        DraftOptimizer(draft, recipe),
        loss,
        evaluate,
        checkpoint,
        lambda: unfinished.keep(partial(save_draft, draft)),
        lambda share: report("training", round(100 * share), 100),
        plan.training_s(),
        distillation.planned_batches(store, recipe),
    )
    best = loop.run(distillation.training_batches(store, recipe))
    save_draft(draft, folder, in_8_bits=settings.in_8_bits)
    unfinished.remove()
    live = None
    if dataset is not None:
        loaded = load_pair(settings.target, str(folder), device=settings.device, dtype=settings.dtype)
        live = evaluate_live(loaded, FixedK(k=EVALUATED_LENGTH), EVALUATED_LENGTH, dataset.prompts, plan.end_s)
    summary: DraftSummary = {
        "steps": best.steps,
        "parameters": sum(weight.numel() for name, weight in draft.named_parameters() if "embed" not in name),
        "vocabulary": len(draft.lm_head.tokens),
        "held_out": {
            "acceptance_length": round(best.acceptance_length, 4),
            "acceptance": [round(rate, 4) for rate in best.acceptance],
        },
        "live": live,
    }
    distillation.record(folder, RECORD, store, {"recipe": asdict(recipe), "layers": settings.layers, **summary})
    return TrainedDraft(folder, summary)


def _initial(
    settings: DraftTrainingSettings, pair: Pair, distillation: Distillation, store: AnswerStore, folder: Path
) -> Any:
    """Return the draft model to train: that of the folder with --resume, else a new one cut out of the target."""
    target = pair.target.model
    if settings.resume and is_reduced_draft(folder):
        draft = load_draft(folder, target).float().requires_grad_(True)
        draft.get_input_embeddings().weight.requires_grad_(False)
        return draft
    text, counts = target.config.get_text_config(), distillation.token_counts(store)
    body = sum(
        weight.numel()
        for name, weight in target.named_parameters()
        if any(f".layers.{layer}." in name for layer in settings.layers)
    )
    active = target.num_parameters(exclude_embeddings=True) + text.vocab_size * text.hidden_size
    size = settings.vocabulary or choose_size(counts, text.vocab_size, text.hidden_size, body, active)
    return new_draft(target, settings.layers, choose_tokens(counts, size, text.vocab_size, pair.eos_ids))
