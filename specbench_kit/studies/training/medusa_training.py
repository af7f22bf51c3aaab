"""Training of Medusa heads: each learns the target's distribution some tokens ahead from the target's last state."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench_kit.models.heads.medusa import MedusaConfig, MedusaModel
from specbench_kit.studies.training.distillation.answers import Answer
from specbench_kit.studies.training.distillation.batches import Acceptance, TextBatch, accepted_counts
from specbench_kit.studies.training.distillation.loop import LossReport, faster_in_bf16
from specbench_kit.studies.training.distillation.vocabulary import ReducedTargets, index_of


def new_medusa(target: PreTrainedModel, tokens: Tensor, heads: int, verifier: str = "") -> MedusaModel:
    """Return untrained heads that draft the given tokens; they say what the target's own head says."""
    text = target.config.get_text_config()
    config = MedusaConfig(
        heads, text.hidden_size, text.vocab_size, len(tokens), text.num_hidden_layers, verifier=verifier
    )
    model = MedusaModel(config).to(target.device)
    with torch.no_grad():
        for block in model.blocks.parameters():
            block.zero_()
        model.d2t.copy_(tokens - torch.arange(len(tokens)))
        model.lm_head.weight.copy_(target.get_output_embeddings().weight[tokens.to(target.device)])
    return model


class MedusaLoss:
    """The loss of Medusa heads on a batch of answers, and their acceptance on held-out ones."""

    def __init__(self, model: MedusaModel, decay: float, total: int) -> None:
        self._model = model
        self._decay = decay
        self._index_of = index_of(model.tokens.cpu(), total).to(model.device)
        self._in_bf16 = faster_in_bf16(model.device)

    def __call__(self, answers: list[Answer]) -> LossReport:
        """Return the loss, in which each further head counts less by `decay`."""
        total = torch.zeros((), device=self._model.device)
        rates = []
        for head, (logits, targets, _) in enumerate(self._heads(answers)):
            total = total + self._decay**head * targets.loss(logits)
            rates.append(float(targets.hits(logits).float().mean()))
        return LossReport(total, rates)

    def acceptance(self, batches: Sequence[list[Answer]]) -> Acceptance:
        """Return the acceptance on greedy answers, each round beginning where the one before ended."""
        heads = self._model.config.heads
        counts: list[int] = []
        for batch in batches:
            hits = torch.zeros(heads, len(batch), max(map(len, batch)), dtype=torch.bool)
            for head, (logits, targets, (rows, columns)) in enumerate(self._heads(batch)):
                hits[head, rows.cpu(), columns.cpu()] = targets.hits(logits).cpu()
            for row, answer in enumerate(batch):
                counts += accepted_counts(hits[:, row, len(answer.prompt) : len(answer)], 1)
        return Acceptance.of(counts, heads)

    def _heads(self, answers: list[Answer]) -> Iterator[tuple[Tensor, ReducedTargets, tuple[Tensor, Tensor]]]:
        """Yield each head's logits, the targets, and where in [answers, tokens] the drafted tokens are."""
        batch = TextBatch.of(answers, self._model.device)
        assert batch.states is not None
        prompts = torch.tensor([len(answer.prompt) for answer in answers], device=self._model.device)
        targets = ReducedTargets.of(batch.top_tokens, batch.top_logits, self._index_of)
        with torch.autocast(self._model.device.type, dtype=torch.bfloat16, enabled=self._in_bf16):
            states = batch.states.to(self._model.dtype)
            for head in range(self._model.config.heads):
                # Drafting begins at the state of the prompt's last token, whose next token the target chose itself.
                drafted = torch.nonzero(batch.columns >= prompts[batch.rows] + 1 + head)[:, 0]
                rows, columns = batch.rows[drafted], batch.columns[drafted]
                logits = self._model.head(states[rows, columns - 2 - head], head).float()
                yield logits, targets[drafted], (rows, columns)
