"""Small random models, and requests decoded on them: what the engine's tests share."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from tiny_heads import heads_beside
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.methods.base import Method
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.runner import Runner

GREEDY = Sampler()
AUTOREGRESSIVE = Autoregressive()


def fill(model: PreTrainedModel, seed: int, scale: float = 0.3) -> PreTrainedModel:
    """Random weights large enough that the model's output depends on what it reads."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, scale, generator=generator)
            else:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model.eval().requires_grad_(False)


AS_NATIVE: dict[str, int] = {"head_dim": 16}
"""Sizes that 16 divides: the native executor computes such a model, in a twentieth of the time."""


def tiny_llama(seed: int = 0, **options: object) -> PreTrainedModel:
    """A llama with grouped queries and an untied head."""
    settings = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
    return fill(LlamaForCausalLM(LlamaConfig(**(settings | options))), seed)


def sharp_llama(seed: int, vocabulary: int) -> PreTrainedModel:
    """A model whose odds between tokens are of the order of 10, so that those of two seeds differ markedly."""
    return tiny_llama(
        seed,
        vocab_size=vocabulary,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        **AS_NATIVE,
    )


def disturbed(model: PreTrainedModel, noise: float, seed: int = 1) -> PreTrainedModel:
    """A copy with noise on its weights: a draft that agrees with the model now and then."""
    generator = torch.Generator().manual_seed(seed)
    copy = deepcopy(model)
    with torch.no_grad():
        for weight in copy.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * noise)
    return copy


def make_runner(
    model: PreTrainedModel, slots: int, capacity: int, executor: str | None = None
) -> Runner:
    """A runner as the bench makes it, or over the named executor."""
    return Runner(make_executor(model, slots, capacity, model.config.vocab_size, executor))


def decode(
    method: Method,
    runners: tuple[Runner, Runner],
    requests: Iterable[Request],
    *,
    sampler: Sampler = GREEDY,
    seed: int = 0,
    eos_ids: frozenset[int] = frozenset(),
    batch_size: int = 1,
    deployment: Deployment | None = None,
    ends: Sequence[Deployment] = (),
    skip_forced: bool = False,
) -> dict[str, RequestRecord]:
    """Every request's record by id, in the order in which they finished."""
    setup = DecodingSetup(
        sampler=sampler,
        seed=seed,
        eos_ids=eos_ids,
        batch_size=batch_size,
        skip_forced=skip_forced,
    )
    other_runners = heads_beside(method, runners[0])
    engine = local_loop(
        method, *runners, setup=setup, deployment=deployment, ends=ends, others=other_runners
    )
    for request in requests:
        engine.submit(request)
    records: dict[str, RequestRecord] = {}
    while not engine.idle:
        records |= {record.request_id: record for record in engine.step()}
    return records


def outputs(records: dict[str, RequestRecord]) -> dict[str, list[int]]:
    """Output tokens by request id."""
    return {name: records[name].output_ids for name in sorted(records)}


def with_references(
    requests: Sequence[Request], records: dict[str, RequestRecord]
) -> list[Request]:
    """The requests with the answers that the records hold."""
    return [
        replace(request, reference=tuple(records[request.id].output_ids)) for request in requests
    ]


def make_requests(prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[Request]:
    """One request per prompt, called by its place."""
    return [
        Request(f"{i:03}", "test", tuple(prompt), max_new_tokens)
        for i, prompt in enumerate(prompts)
    ]


def random_prompts(lengths: Sequence[int], vocabulary: int, seed: int = 0) -> list[list[int]]:
    """Prompts of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths
    ]


@torch.inference_mode()
def plain_logits(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """Return the transformers model's own logits after each token, [tokens, vocabulary]."""
    logits: Tensor = (
        model(torch.tensor([list(tokens)], device=model.device), use_cache=False).logits[0].float()
    )
    return logits


def plain_greedy(
    model: PreTrainedModel, prompt: Sequence[int], count: int
) -> tuple[list[int], float]:
    """Greedy continuation without any cache, and the least lead of a chosen token over the runner-up's logit."""
    tokens, least = list(prompt), float("inf")
    for _ in range(count):
        values, best = plain_logits(model, tokens)[-1].topk(2)
        least = min(least, float(values[0] - values[1]))
        tokens.append(int(best[0]))
    return tokens[len(prompt) :], least


def clear_prompts(
    model: PreTrainedModel, lengths: Sequence[int], count: int, seed: int = 0, lead: float = 1e-3
) -> list[list[int]]:
    """Prompts of the given lengths whose greedy continuation has no near-tie that rounding could turn."""
    prompts: list[list[int]] = []
    for length in lengths:
        while True:
            seed += 1
            (prompt,) = random_prompts([length], model.config.vocab_size, seed)
            if plain_greedy(model, prompt, count)[1] > lead:
                prompts.append(prompt)
                break
    return prompts
