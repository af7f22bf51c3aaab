"""Fitting a head to a target: its distribution after every answered token, learned over several steps of drafting."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig

from specbench_kit.models.heads.config import HeadConfig, default_layers
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.studies.training.heads.options import Recipe
from specbench_kit.studies.training.heads.unroll import unroll

PADDING = 0


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the target's answer to it."""

    prompt: Sequence[int]
    answer: Sequence[int]


def new_head(
    target: Any, texts: Sequence[Text], vocabulary: int, seed: int, layers: tuple[int, ...] = (), verifier: str = ""
) -> HeadModel:
    """An untrained head that says the `vocabulary` tokens that the answers hold most often; all, where they are fewer.

    Its layer has the sizes of the target's; its embedding is the target's own.
    """
    text = target.config.get_text_config()
    heads = text.num_attention_heads
    sizes = {name: getattr(text, name) for name in ("hidden_size", "vocab_size", "max_position_embeddings")}
    layer = LlamaConfig(
        **sizes,
        num_hidden_layers=1,
        intermediate_size=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        num_attention_heads=heads,
        num_key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        tie_word_embeddings=False,
    )
    tokens = _commonest(texts, min(vocabulary, text.vocab_size), text.vocab_size)
    reads = layers or default_layers(text.num_hidden_layers)
    torch.manual_seed(seed)
    head = HeadModel(HeadConfig(layer, len(tokens), text.hidden_size, reads, verifier))
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


def _commonest(texts: Sequence[Text], count: int, vocabulary: int) -> Tensor:
    seen = Counter(token for text in texts for token in text.answer)
    order = sorted(range(vocabulary), key=lambda token: (-seen[token], token))
    return torch.tensor(sorted(order[:count]))


def fit(
    head: HeadModel, target: Any, texts: Sequence[Text], recipe: Recipe, report: Callable[[float, str], None]
) -> None:
    """Train; `report` is told the share that is done and how it goes."""
    rng = random.Random(recipe.seed)
    batches = [batch for _ in range(recipe.epochs) for batch in batched(texts, recipe.tokens_per_batch, rng)]
    optimizer, warm_up = Optimizer(head, recipe.learning_rate), max(1, len(batches) // 40)
    head.train()
    for number, batch in enumerate(batches, 1):
        losses, hits = judge(head, target, batch, recipe.steps)
        loss = sum((recipe.decay**step * loss for step, loss in enumerate(losses)), torch.zeros(()))
        loss.backward()
        optimizer.step(min(1.0, number / warm_up, 1.0 - (number - 1) / len(batches)))
        report(number / len(batches), " ".join(f"{float(hit):.3f}" for hit in hits))
    head.eval()


def batched(texts: Sequence[Text], tokens: int, rng: random.Random) -> Iterator[list[Text]]:
    """Texts of like length together, in an order by chance; at most so many tokens in a batch, padding included."""
    # Steps after the first leave out what all of a batch have as prompts.
    ordered = sorted(texts, key=lambda text: (len(text.prompt) // 16, len(text.answer), rng.random()))
    found, batch = list[list[Text]](), list[Text]()
    for text in ordered:
        if batch and (len(batch) + 1) * max(len(one.prompt) + len(one.answer) for one in (*batch, text)) > tokens:
            found.append(batch)
            batch = []
        batch.append(text)
    found.append(batch)
    rng.shuffle(found)
    yield from found


def judge(head: HeadModel, target: Any, texts: Sequence[Text], steps: int) -> tuple[list[Tensor], list[Tensor]]:
    """Of every step the loss against the target's distribution, and how often the target's choice is the head's."""
    width = max(len(text.prompt) + len(text.answer) for text in texts)
    tokens = torch.full((len(texts), width), PADDING)
    counts = torch.zeros(len(texts), width - 2, dtype=torch.bool)
    for row, text in enumerate(texts):
        size = len(text.prompt) + len(text.answer)
        tokens[row, :size] = torch.tensor([*text.prompt, *text.answer])
        # The first token of an answer is never drafted: the head has yet to see a state of the target.
        counts[row, max(len(text.prompt) - 1, 0) : size - 2] = True
    tokens, counts = tokens.to(head.device), counts.to(head.device)
    with torch.autocast(head.device.type, dtype=torch.bfloat16):
        features, wanted = _teach(head, target, tokens)
        first = max(0, int(counts.any(0).int().argmax()) - steps + 1)
        losses, hits = [], []
        for step, state in enumerate(unroll(head, tokens[:, :-1], head.fc(features), steps, first)):
            chosen = counts[:, first + step :]
            found = head.lm_head(head.norm(state)[chosen]).float()
            expected = wanted[:, first + step :][chosen]
            losses.append(cross_entropy(found, expected))
            hits.append((found.argmax(-1) == expected.argmax(-1)).float().mean())
    return losses, hits


@torch.no_grad()
def _teach(head: HeadModel, target: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """What the head reads of the target, and the target's distribution over what the head can say."""
    # Padding stands behind every text, where nothing attends to it.
    output = target(input_ids=tokens[:, :-1], use_cache=False, output_hidden_states=True, logits_to_keep=1)
    features = torch.cat([output.hidden_states[layer] for layer in head.config.layers], -1)[:, :-1]
    last = output.hidden_states[-1][:, 1:]
    logits = torch.nn.functional.linear(last, target.get_output_embeddings().weight[head.tokens])
    return features, logits.float().softmax(-1)


class Optimizer:
    """Muon for the layer's matrices, AdamW for the rest."""

    def __init__(self, head: HeadModel, learning_rate: float) -> None:
        inner = [w for n, w in head.named_parameters() if w.ndim == 2 and w.requires_grad and "lm_head" not in n]
        outer = [w for n, w in head.named_parameters() if w.requires_grad and (w.ndim != 2 or "lm_head" in n)]
        self._weights = inner + outer
        self._parts: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.Muon(inner, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"), learning_rate),
            (torch.optim.AdamW(outer, betas=(0.9, 0.95), weight_decay=0.0), learning_rate / 4),
        ]

    def step(self, share: float) -> None:
        """Go a share of the learning rate."""
        torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
        for part, highest in self._parts:
            for group in part.param_groups:
                group["lr"] = share * highest
            part.step()
            part.zero_grad()
