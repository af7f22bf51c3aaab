"""Fit a draft model to the target's distribution at every token of its answers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specbench_kit.studies.training.answers.store import Answer
from specbench_kit.studies.training.distillation.batches import TextBatch
from specbench_kit.studies.training.distillation.loop import LossReport, faster_in_bf16
from specbench_kit.studies.training.distillation.vocabulary import ReducedTargets, index_of
from specbench_kit.studies.training.distillation.walk import Acceptance, accepted_counts
from specbench_kit.studies.training.drafts.options import DraftRecipe

EVALUATED_LENGTH = 4


class DraftLoss:
    """The loss of a draft model with a reduced vocabulary, and its acceptance on held-out answers."""

    def __init__(self, draft: Any, recipe: DraftRecipe) -> None:
        self._draft, self._recipe = draft, recipe
        self._index_of = index_of(draft.lm_head.tokens.cpu(), draft.lm_head.total).to(draft.device)
        self._in_bf16 = faster_in_bf16(draft.device)

    def __call__(self, answers: list[Answer]) -> LossReport:
        """Return the loss over all tokens of the answers."""
        logits, targets, _ = self._compute(answers)
        return LossReport(
            targets.loss(logits, self._recipe.best_token_weight), [float(targets.hits(logits).float().mean())]
        )

    def acceptance(self, batches: Sequence[list[Answer]], length: int = EVALUATED_LENGTH) -> Acceptance:
        """Return the acceptance of drafts of `length` tokens on greedy answers, round after round."""
        counts: list[int] = []
        for batch in batches:
            logits, targets, (rows, columns) = self._compute(batch)
            hits = torch.zeros(len(batch), max(map(len, batch)), dtype=torch.bool)
            hits[rows.cpu(), columns.cpu()] = targets.hits(logits).cpu()
            for row, answer in enumerate(batch):
                counts += accepted_counts(hits[row, len(answer.prompt) : len(answer)].expand(length, -1), 0)
        return Acceptance.of(counts, length)

    def _compute(self, answers: list[Answer]) -> tuple[Tensor, ReducedTargets, tuple[Tensor, Tensor]]:
        """Return logits over the draft's vocabulary at all tokens of the answers, the targets, and their places."""
        draft = self._draft
        batch = TextBatch.of(answers, draft.device)
        with torch.autocast(draft.device.type, dtype=torch.bfloat16, enabled=self._in_bf16):
            # Padding follows every text, so that no token of a text attends to it.
            hidden = draft.model(input_ids=batch.tokens[:, :-1], use_cache=False).last_hidden_state
            logits = torch.nn.functional.linear(hidden[batch.rows, batch.columns - 1], draft.lm_head.weight)
        reduced = ReducedTargets.of(batch.top_tokens, batch.top_logits, self._index_of)
        return logits.float(), reduced, (batch.rows, batch.columns)

    @torch.no_grad()
    def calm(self, batch: list[Answer]) -> None:
        """Scale the last norm so that the logits have a standard deviation of 1.

        Layers cut out of a model give far too certain logits, from which training recovers slowly.
        """
        logits, _, _ = self._compute(batch)
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
