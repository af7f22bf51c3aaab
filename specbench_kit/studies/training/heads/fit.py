"""Fit a draft head to the target's distribution after every answered token, over several draft steps."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, PreTrainedModel

from specbench_kit.models.heads.config import HeadConfig, default_layers
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.studies.training.heads.options import Recipe
from specbench_kit.studies.training.heads.unroll import unroll

PADDING = 0


@dataclass(frozen=True, slots=True)
class TrainingText:
    """A prompt and the target's answer to it, as token ids."""

    prompt: Sequence[int]
    answer: Sequence[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


def new_head(
    target: PreTrainedModel,
    texts: Sequence[TrainingText],
    vocabulary: int,
    seed: int,
    layers: tuple[int, ...] = (),
    verifier: str = "",
) -> HeadModel:
    """Return an untrained head that can draft the `vocabulary` most frequent tokens of the answers, or all tokens.

    Its layer has the sizes of the target's layers; its embedding is the target's own.
    """
    config = target.config.get_text_config()
    heads = config.num_attention_heads
    layer = LlamaConfig(
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
    counts = Counter(token for text in texts for token in text.answer)
    by_frequency = sorted(range(config.vocab_size), key=lambda token: (-counts[token], token))
    tokens = torch.tensor(sorted(by_frequency[: min(vocabulary, config.vocab_size)]))
    torch.manual_seed(seed)
    read_layers = layers or default_layers(config.num_hidden_layers)
    head = HeadModel(HeadConfig(layer, len(tokens), config.hidden_size, read_layers, verifier))
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


def fit(
    head: HeadModel,
    target: PreTrainedModel,
    texts: Sequence[TrainingText],
    recipe: Recipe,
    report: Callable[[float, str], None],
) -> None:
    """Train the head; `report` is called with the finished share and the agreement with the target by draft step."""
    rng = random.Random(recipe.seed)
    batches = [batch for _ in range(recipe.epochs) for batch in make_batches(texts, recipe.tokens_per_batch, rng)]
    optimizer, warm_up = HeadOptimizer(head, recipe.learning_rate), max(1, len(batches) // 40)
    head.train()
    for number, batch in enumerate(batches, 1):
        losses, hits = losses_and_hits(head, target, batch, recipe.steps)
        loss = sum((recipe.decay**step * loss for step, loss in enumerate(losses)), torch.zeros(()))
        loss.backward()
        optimizer.step(min(1.0, number / warm_up, 1.0 - (number - 1) / len(batches)))
        report(number / len(batches), " ".join(f"{float(hit):.3f}" for hit in hits))
    head.eval()


def make_batches(texts: Sequence[TrainingText], tokens: int, rng: random.Random) -> Iterator[list[TrainingText]]:
    """Yield texts of similar length together, in random order, with at most `tokens` per batch, padding included."""
    # Similar prompts, since all draft steps but the first skip the rows that are prompt in the whole batch.
    ordered = sorted(texts, key=lambda text: (len(text.prompt) // 16, len(text.answer), rng.random()))
    batches, batch = list[list[TrainingText]](), list[TrainingText]()
    for text in ordered:
        if batch and (len(batch) + 1) * max(map(len, (*batch, text))) > tokens:
            batches.append(batch)
            batch = []
        batch.append(text)
    batches.append(batch)
    rng.shuffle(batches)
    yield from batches


def losses_and_hits(
    head: HeadModel, target: PreTrainedModel, texts: Sequence[TrainingText], steps: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return, for each draft step, the loss against the target's distribution and the share of equal top tokens."""
    width = max(map(len, texts))
    tokens = torch.full((len(texts), width), PADDING)
    learned = torch.zeros(len(texts), width - 2, dtype=torch.bool)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor([*text.prompt, *text.answer])
        # The first token of an answer is never drafted: the head has yet to see a state of the target.
        learned[row, max(len(text.prompt) - 1, 0) : len(text) - 2] = True
    tokens, learned = tokens.to(head.device), learned.to(head.device)
    with torch.autocast(head.device.type, dtype=torch.bfloat16):
        features, target_shares = _teach(head, target, tokens)
        # The first row that any text learns from; rows before it matter as inputs of later draft steps only.
        first = max(0, int(learned.any(0).int().argmax()) - steps + 1)
        losses, hits = [], []
        for step, state in enumerate(unroll(head, tokens[:, :-1], head.fc(features), steps, first)):
            rows = learned[:, first + step :]
            logits = head.lm_head(head.norm(state)[rows]).float()
            expected = target_shares[:, first + step :][rows]
            losses.append(cross_entropy(logits, expected))
            hits.append((logits.argmax(-1) == expected.argmax(-1)).float().mean())
    return losses, hits


@torch.no_grad()
def _teach(head: HeadModel, target: PreTrainedModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the hidden states that the head reads, and the target's distribution over the head's vocabulary."""
    # Padding follows every text, so that no token of a text attends to it.
    output = target(input_ids=tokens[:, :-1], use_cache=False, output_hidden_states=True, logits_to_keep=1)
    features = torch.cat([output.hidden_states[layer] for layer in head.config.layers], -1)[:, :-1]
    last = output.hidden_states[-1][:, 1:]
    logits = torch.nn.functional.linear(last, target.get_output_embeddings().weight[head.tokens])
    return features, logits.float().softmax(-1)


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
