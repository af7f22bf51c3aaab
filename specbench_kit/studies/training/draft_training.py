"""From prompts or a trace to a small draft model in its folder, and what it reaches on held-out
prompts.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench_kit.core.progress import ProgressCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.models.draft_library import trained_folder
from specbench_kit.models.drafts.reduced import (
    is_reduced_draft,
    load_draft,
    new_draft,
    require_layers,
    save_draft,
)
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.studies.training.distillation.answers import Answer, TrainingAnswerStore
from specbench_kit.studies.training.distillation.batches import (
    RoundAcceptance,
    TextBatch,
    accepted_counts,
)
from specbench_kit.studies.training.distillation.live import evaluate_live
from specbench_kit.studies.training.distillation.loop import (
    LossReport,
    UnfinishedDraft,
    faster_in_bf16,
)
from specbench_kit.studies.training.distillation.options import (
    DraftRecipe,
    DraftTrainingSettings,
    require_same,
)
from specbench_kit.studies.training.distillation.study import (
    Distillation,
    TimePlan,
    TrainedDrafter,
    summarise,
)
from specbench_kit.studies.training.distillation.vocabulary import (
    ReducedTargets,
    choose_size,
    choose_tokens,
    index_of,
)

RECORD = "training.json"


def train_draft(
    settings: DraftTrainingSettings,
    recipe: DraftRecipe,
    dataset: LoadedDataset | None,
    report: ProgressCallback,
    tell: Callable[[str], None],
) -> TrainedDrafter:
    """Train a draft model on the target's answers; `dataset` is answered if the settings name no
    trace.

    `tell` is given a line at every checkpoint.
    """
    plan = TimePlan.of(settings.minutes, settings.answer_minutes, monotonic_s())
    pair = load_pair(settings.target, None, device=settings.device, dtype=settings.dtype)
    require_layers(pair.target.shell, settings.layers)
    distillation = Distillation(settings, pair, (), plan, report)
    folder = settings.save_to or trained_folder(pair.target.source, "draft")
    unfinished = UnfinishedDraft(folder)
    start = unfinished.start(resume=settings.resume)
    # What cannot be continued is refused before prompts are answered, which takes long.
    resumed = settings.resume and is_reduced_draft(start)
    earlier = _resumed(settings, pair, start) if resumed else None
    store = distillation.answer(dataset)
    draft = earlier or _cut_out(settings, pair, distillation, store)
    loss = DraftLoss(draft, recipe)
    held_out = distillation.held_out(store, recipe.tokens_per_batch)
    if not settings.resume:
        loss.calm(held_out[0])
    optimizer = DraftOptimizer(draft, recipe)
    save = partial(save_draft, draft)
    best = distillation.train(
        draft, optimizer, loss, held_out, store, recipe, unfinished, save, tell
    )
    save_draft(draft, folder, in_8_bits=settings.in_8_bits)
    unfinished.finish()
    live = None
    if dataset is not None:
        loaded = load_pair(
            settings.target, str(folder), device=settings.device, dtype=settings.dtype
        )
        live = evaluate_live(
            loaded, FixedK(k=EVALUATED_LENGTH), EVALUATED_LENGTH, dataset.prompts, plan.end_s
        )
    summary = summarise(draft, best, len(draft.lm_head.tokens), live)
    distillation.record(
        folder, RECORD, store, {"recipe": asdict(recipe), "layers": settings.layers, **summary}
    )
    return TrainedDrafter(folder, summary)


def _resumed(settings: DraftTrainingSettings, pair: Pair, folder: Path) -> Any:
    """Return the draft model of the folder, to train it further; raise SkitError if the settings
    ask for another one.
    """
    draft = load_draft(folder, pair.target.model).float().requires_grad_(True)
    require_same(folder, vocabulary=(settings.vocabulary, len(draft.lm_head.tokens)))
    draft.get_input_embeddings().weight.requires_grad_(False)
    return draft


def _cut_out(
    settings: DraftTrainingSettings,
    pair: Pair,
    distillation: Distillation,
    store: TrainingAnswerStore,
) -> Any:
    """Return a draft model cut out of the target, which is still to be trained."""
    target = pair.target.model
    text = target.config.get_text_config()
    counts = distillation.token_counts(store)
    body = 0
    for name, weight in target.named_parameters():
        if any(f".layers.{layer}." in name for layer in settings.layers):
            body += weight.numel()
    active = target.num_parameters(exclude_embeddings=True) + text.vocab_size * text.hidden_size
    size = settings.vocabulary or choose_size(
        counts, text.vocab_size, text.hidden_size, body, active
    )
    return new_draft(
        target, settings.layers, choose_tokens(counts, size, text.vocab_size, pair.eos_ids)
    )


EVALUATED_LENGTH = 4


class DraftLoss:
    """The loss of a draft model with a reduced vocabulary, and its acceptance on held-out
    answers.
    """

    def __init__(self, draft: Any, recipe: DraftRecipe) -> None:
        self._draft = draft
        self._recipe = recipe
        self._index_of = index_of(draft.lm_head.tokens.cpu(), draft.lm_head.total).to(draft.device)
        self._in_bf16 = faster_in_bf16(draft.device)

    def __call__(self, answers: list[Answer]) -> LossReport:
        """Return the loss over all tokens of the answers."""
        logits, targets, _ = self._compute(answers, self._in_bf16)
        return LossReport(
            targets.loss(logits, self._recipe.best_token_weight),
            [float(targets.hits(logits).float().mean())],
        )

    def acceptance(
        self, batches: Sequence[list[Answer]], length: int = EVALUATED_LENGTH
    ) -> RoundAcceptance:
        """Return the acceptance of drafts of `length` tokens on greedy answers, round after
        round.
        """
        counts: list[int] = []
        for batch in batches:
            # In full precision, as it will decode.
            logits, targets, (rows, columns) = self._compute(batch, in_bf16=False)
            hits = torch.zeros(len(batch), max(map(len, batch)), dtype=torch.bool)
            hits[rows.cpu(), columns.cpu()] = targets.hits(logits).cpu()
            for row, answer in enumerate(batch):
                counts += accepted_counts(
                    hits[row, len(answer.prompt) : len(answer)].expand(length, -1), 0
                )
        return RoundAcceptance.of(counts, length)

    def _compute(
        self, answers: list[Answer], in_bf16: bool
    ) -> tuple[Tensor, ReducedTargets, tuple[Tensor, Tensor]]:
        """Return logits over the draft's vocabulary at all tokens of the answers, the targets, and
        their places.
        """
        draft = self._draft
        batch = TextBatch.of(answers, draft.device)
        with torch.autocast(draft.device.type, dtype=torch.bfloat16, enabled=in_bf16):
            # Padding follows every text, so that no token of a text attends to it.
            hidden = draft.model(input_ids=batch.tokens[:, :-1], use_cache=False).last_hidden_state
            logits = torch.nn.functional.linear(
                hidden[batch.rows, batch.columns - 1], draft.lm_head.weight
            )
        reduced = ReducedTargets.of(batch.top_tokens, batch.top_logits, self._index_of)
        return logits.float(), reduced, (batch.rows, batch.columns)

    @torch.no_grad()
    def calm(self, batch: list[Answer]) -> None:
        """Scale the last norm so that the logits have a standard deviation of 1.

        Layers cut out of a model give far too certain logits, from which training recovers slowly.
        """
        logits, _, _ = self._compute(batch, in_bf16=False)
        self._draft.model.norm.weight.mul_(1 / logits.std())


class DraftOptimizer:
    """AdamW for all weights of a draft but its embedding."""

    def __init__(self, draft: Any, recipe: DraftRecipe) -> None:
        self._weights = [weight for weight in draft.parameters() if weight.requires_grad]
        self._rate = recipe.learning_rate
        self._optimizer = torch.optim.AdamW(
            self._weights, lr=self._rate, betas=(0.9, 0.95), weight_decay=recipe.weight_decay
        )

    def step(self, share: float) -> None:
        """Update the weights with `share` of the learning rate."""
        torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = share * self._rate
        self._optimizer.step()
        self._optimizer.zero_grad()
