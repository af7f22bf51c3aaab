"""Fit a draft head to the target's distribution after every answered token, over several draft steps."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from specbench_kit.models.heads.config import HeadConfig
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.studies.training.answers.store import Answer
from specbench_kit.studies.training.distillation.batches import TextBatch
from specbench_kit.studies.training.distillation.loop import LossReport, faster_in_bf16
from specbench_kit.studies.training.distillation.vocabulary import ReducedTargets, index_of
from specbench_kit.studies.training.distillation.walk import Acceptance, accepted_counts
from specbench_kit.studies.training.heads.options import HeadRecipe
from specbench_kit.studies.training.heads.unroll import unroll

EVALUATED_STEPS = 5


def layer_config(target: PreTrainedModel) -> LlamaConfig:
    """Return the configuration of a head's single layer, which has the sizes of the target's layers."""
    config = target.config.get_text_config()
    heads = config.num_attention_heads
    return LlamaConfig(
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        num_hidden_layers=1,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        num_attention_heads=heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        tie_word_embeddings=False,
    )


def new_head(
    target: PreTrainedModel, tokens: Tensor, seed: int, layers: tuple[int, ...], verifier: str = ""
) -> HeadModel:
    """Return an untrained head that drafts the given tokens; its embedding is the target's own."""
    torch.manual_seed(seed)
    head = HeadModel(HeadConfig(layer_config(target), len(tokens), target.config.hidden_size, layers, verifier))
    head.to(target.device)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.02 if "proj" in name else weight.shape[1] ** -0.5)
        head.d2t.copy_(tokens - torch.arange(len(tokens)))
        head.embed_tokens.weight.copy_(target.get_input_embeddings().weight)
        head.lm_head.weight.copy_(target.get_output_embeddings().weight[tokens.to(target.device)])
    head.embed_tokens.requires_grad_(False)
    head.owns_embedding = False
    return head


class HeadLoss:
    """The loss of a head on a batch of answers, and its acceptance on held-out ones."""

    def __init__(self, head: HeadModel, recipe: HeadRecipe, total: int) -> None:
        self._head, self._recipe = head, recipe
        self._index_of = index_of(head.tokens.cpu(), total).to(head.device)
        self._in_bf16 = faster_in_bf16(head.device)

    def __call__(self, answers: list[Answer]) -> LossReport:
        """Return the loss, in which each further draft step counts less by the recipe's `decay`."""
        total = torch.zeros((), device=self._head.device)
        rates = []
        for step, (logits, targets, _) in enumerate(self._steps(answers, self._recipe.steps)):
            total = total + self._recipe.decay**step * targets.loss(logits)
            rates.append(float(targets.hits(logits).float().mean()))
        return LossReport(total, rates)

    def acceptance(self, batches: Sequence[list[Answer]], steps: int = EVALUATED_STEPS) -> Acceptance:
        """Return the acceptance on greedy answers, each round beginning where the one before ended."""
        counts: list[int] = []
        for batch in batches:
            # The first step fills every answer token but the first, and each later step one fewer.
            hits = torch.zeros(steps, len(batch), max(map(len, batch)), dtype=torch.bool)
            for step, (logits, targets, (rows, columns)) in enumerate(self._steps(batch, steps)):
                hits[step, rows.cpu(), columns.cpu()] = targets.hits(logits).cpu()
            for row, answer in enumerate(batch):
                counts += accepted_counts(hits[:, row, len(answer.prompt) : len(answer)], 1)
        return Acceptance.of(counts, steps)

    def _steps(self, answers: list[Answer], steps: int) -> "list[tuple[Tensor, ReducedTargets, tuple[Tensor, Tensor]]]":
        """Return for each draft step its logits, the targets, and where in [answers, tokens] the drafted tokens are."""
        head = self._head
        batch = TextBatch.of(answers, head.device)
        assert batch.states is not None
        # Row i of the head reads the state of token i and token i + 1, and drafts token i + 2.
        targets = torch.full(batch.tokens.shape, -1, device=head.device)
        targets[batch.rows, batch.columns] = torch.arange(len(batch.rows), device=head.device)
        # The first token of an answer is never drafted: the head has yet to see a state of the target.
        for row, answer in enumerate(answers):
            targets[row, len(answer.prompt)] = -1
        targets = targets[:, 2:]
        reduced = ReducedTargets.of(batch.top_tokens, batch.top_logits, self._index_of)
        # Rows before the first that any text learns from matter as inputs of later draft steps only.
        first = max(0, int((targets >= 0).any(0).int().argmax()) - steps + 1)
        results = []
        with torch.autocast(head.device.type, dtype=torch.bfloat16, enabled=self._in_bf16):
            fused = head.fc(batch.states[:, :-1].to(head.dtype))
            for step, state in enumerate(unroll(head, batch.tokens[:, :-1], fused, steps, first)):
                wanted = targets[:, first + step :]
                rows, columns = torch.nonzero(wanted >= 0, as_tuple=True)
                logits = head.lm_head(head.norm(state[rows, columns])).float()
                places = rows, columns + first + step + 2
                results.append((logits, reduced[wanted[rows, columns]], places))
        return results


class HeadOptimizer:
    """Muon for the matrices of the layer, AdamW for all other weights."""

    def __init__(self, head: HeadModel, learning_rate: float) -> None:
        inner = [w for n, w in head.named_parameters() if w.ndim == 2 and w.requires_grad and "lm_head" not in n]
        outer = [w for n, w in head.named_parameters() if w.requires_grad and (w.ndim != 2 or "lm_head" in n)]
        self._weights = inner + outer
        self._optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.Muon(inner, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"), learning_rate),
            (torch.optim.AdamW(outer, betas=(0.9, 0.95), weight_decay=0.0), learning_rate / 4),
        ]

    def step(self, share: float) -> None:
        """Update the weights with `share` of the learning rate."""
        torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
        for optimizer, learning_rate in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = share * learning_rate
            optimizer.step()
            optimizer.zero_grad()
