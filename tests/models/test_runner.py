"""Slots: whatever was appended, committed or dropped, KV and logits are those of the committed text and one path."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from nightly import nightly_except
from tiny_models import (
    decode,
    disturbed,
    fill,
    make_requests,
    make_runner,
    plain_logits,
    random_prompts,
    tiny_llama,
)
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.executors.kv import BAND
from specbench_kit.models.runner import Append, Runner

CAPACITY = 150
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def _llama() -> PreTrainedModel:
    return tiny_llama(0)


def _bfloat16_llama() -> PreTrainedModel:
    return tiny_llama(0).to(torch.bfloat16)


def _windowed_mistral() -> PreTrainedModel:
    return fill(MistralForCausalLM(MistralConfig(**SIZES, sliding_window=5)), 1)


def _mixed_qwen2() -> PreTrainedModel:
    config = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1)
    return fill(Qwen2ForCausalLM(config), 2)


def _gpt2() -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=256,
        bos_token_id=0,
        eos_token_id=0,
    )
    return fill(GPT2LMHeadModel(config), 3)


@dataclass
class SlotMirror:
    """A record of what a slot ought to hold."""

    slot: int
    committed: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    def path(self, node: int) -> list[int]:
        return [] if node < 0 else [*self.path(self.parents[node]), node]

    def text(self, node: int) -> list[int]:
        return self.committed + [self.tokens[step] for step in self.path(node)]

    def grow(self, dice: random.Random) -> Append:
        """Random new nodes: a chain that needs no parents, or branches anywhere in the tree."""
        before, count = len(self.tokens), dice.choice([1, 1, 2, 3, 5, 9, BAND - 1, BAND, BAND + 6])
        count = min(count, CAPACITY - len(self.committed) - before)
        tokens = [dice.randrange(64) for _ in range(count)]
        chain = dice.random() < 0.5
        parents = [
            before + i - 1 if chain else dice.randrange(-1, before + i) for i in range(count)
        ]
        self.tokens += tokens
        self.parents += parents
        return Append(
            self.slot,
            tokens,
            None if chain and dice.random() < 0.5 else parents,
            dice.randint(1, count),
        )

    def commit(self, dice: random.Random) -> tuple[list[int], list[int]]:
        """A random path, and now and then what stands below one of its end's children."""
        path = self.path(dice.randrange(-1, len(self.tokens)))
        end = path[-1] if path else -1
        children = [node for node, parent in enumerate(self.parents) if parent == end]
        root = dice.choice([None, *children])
        subtree = [node for node in range(len(self.tokens)) if root in self.path(node)]
        self.committed += [self.tokens[node] for node in path]
        self.parents = [
            subtree.index(self.parents[node]) if node != root else -1 for node in subtree
        ]
        self.tokens = [self.tokens[node] for node in subtree]
        return path, subtree


APPENDED = [
    (_llama, "llama-cpu", 2e-4),
    (_llama, "transformers", 2e-4),
    (_windowed_mistral, "transformers", 2e-4),
    (_mixed_qwen2, "transformers", 2e-4),
    (_gpt2, "transformers", 2e-4),
    (_bfloat16_llama, "transformers", 0.15),
]


@pytest.mark.parametrize(
    ("make_model", "executor", "tolerance"),
    nightly_except([APPENDED[0], APPENDED[1], APPENDED[3], APPENDED[5]], APPENDED),
)
def test_random_appends_and_commits(
    make_model: Callable[[], PreTrainedModel], executor: str, tolerance: float
) -> None:
    model, dice = make_model(), random.Random(7)
    runner, fresh = (
        make_runner(model, 4, CAPACITY, executor),
        make_runner(model, 1, CAPACITY, executor),
    )
    mirrors: list[SlotMirror] = []
    for _ in range(60):
        if len(mirrors) < 4 and dice.random() < 0.4:
            mirrors.append(SlotMirror(runner.acquire()))
        chosen = [m for m in dice.sample(mirrors, len(mirrors)) if dice.random() < 0.7]
        chosen = [m for m in chosen if len(m.committed) + len(m.tokens) < CAPACITY]
        rows = [mirror.grow(dice) for mirror in chosen]
        logits = runner.forward(rows)
        for index, (mirror, row) in enumerate(zip(chosen, rows, strict=True)):
            _check_logits(model, mirror, logits[index], row, dice, tolerance)
        for mirror in list(mirrors):
            assert runner.provisional(mirror.slot) == len(mirror.tokens)
            if dice.random() < 0.6:
                runner.commit(mirror.slot, *mirror.commit(dice))
                assert runner.length(mirror.slot) == len(mirror.committed)
                assert runner.provisional(mirror.slot) == len(mirror.tokens)
                _check_kv(runner, fresh, mirror, tolerance)
            if dice.random() < 0.1 or len(mirror.committed) == CAPACITY:
                runner.release(mirror.slot)
                mirrors.remove(mirror)


def _check_logits(
    model: PreTrainedModel,
    mirror: SlotMirror,
    logits: torch.Tensor,
    row: Append,
    dice: random.Random,
    tolerance: float,
) -> None:
    """The kept nodes say what the model says after their path alone; a few of them are looked at."""
    assert logits.shape == (row.keep, 64)
    first = len(mirror.tokens) - row.keep
    for node in {first, len(mirror.tokens) - 1, dice.randrange(first, len(mirror.tokens))}:
        expected = plain_logits(model, mirror.text(node))[-1]
        torch.testing.assert_close(
            logits[node - first].float(), expected, atol=tolerance, rtol=tolerance
        )


def _check_kv(runner: Runner, fresh: Runner, mirror: SlotMirror, tolerance: float) -> None:
    """The slot holds what one forward of the committed text alone writes."""
    if not mirror.committed:
        return
    slot, length = fresh.acquire(), len(mirror.committed)
    fresh.forward([Append(slot, mirror.committed)])
    blocks = zip(fresh.executor.store.blocks, runner.executor.store.blocks, strict=True)
    for fresh_kv, kv in blocks:
        of_the_slot = kv[:, mirror.slot, :, :length]
        torch.testing.assert_close(
            of_the_slot, fresh_kv[:, slot, :, :length], atol=tolerance, rtol=tolerance
        )
    fresh.release(slot)


@pytest.mark.parametrize("executor", ["llama-cpu", "transformers"])
def test_a_reused_slot_remembers_nothing(executor: str) -> None:
    model = tiny_llama(0)
    prompt, earlier_prompt = random_prompts([20, 70], 64)
    clean, used = (
        make_runner(model, 1, CAPACITY, executor),
        make_runner(model, 1, CAPACITY, executor),
    )
    for block in used.executor.store.blocks:
        block.fill_(1e3)
    slot = used.acquire()
    used.forward([Append(slot, earlier_prompt)])
    used.commit(slot, range(50))
    used.release(slot)
    rows = [Append(0, prompt, keep=20)]
    assert (clean.acquire(), used.acquire()) == (0, 0)
    torch.testing.assert_close(used.forward(rows)[0], clean.forward(rows)[0], atol=1e-5, rtol=1e-5)


def test_neighbours_have_no_influence() -> None:
    """A row's logits do not depend on the other rows, nor on their order."""
    model = tiny_llama(0)
    prompts = random_prompts([20, 3, 41], 64)
    runner = make_runner(model, 3, CAPACITY)
    slots = [runner.acquire() for _ in prompts]
    together = runner.forward([Append(slots[i], prompts[i], keep=3) for i in (2, 0, 1)])
    for index, i in enumerate((2, 0, 1)):
        torch.testing.assert_close(
            together[index], plain_logits(model, prompts[i])[-3:], atol=1e-4, rtol=1e-4
        )


def test_a_slot_holds_its_capacity_and_no_more() -> None:
    runner = make_runner(tiny_llama(0), 1, 10)
    slot = runner.acquire()
    runner.forward([Append(slot, [1] * 6)])
    runner.commit(slot, range(6))
    runner.forward([Append(slot, [1] * 4)])
    with pytest.raises(SkitError, match=r"^a request outgrew its KV slot of 10 tokens$"):
        runner.forward([Append(slot, [1])])


def test_logits_are_cut_to_the_shared_vocabulary() -> None:
    model = tiny_llama(0)
    runner = Runner(make_executor(model, 1, 10, 40))
    logits = runner.forward([Append(runner.acquire(), [1, 2, 3], keep=3)])
    torch.testing.assert_close(
        logits[0], plain_logits(model, [1, 2, 3])[:, :40], atol=1e-4, rtol=1e-4
    )
    assert logits.argmax()[0] == plain_logits(model, [1, 2, 3])[:, :40].argmax(-1).tolist()


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=1.0)])
@pytest.mark.parametrize("sick", ["target", "draft"])
def test_nan_logits_are_one_line(sick: str, sampler: Sampler) -> None:
    """One logit that is not a number is enough."""
    model = tiny_llama(0)
    broken = disturbed(model, 0.0)
    broken.lm_head.weight[5] = float("nan")
    runners = [
        make_runner(broken if sick == role else model, 2, 40) for role in ("target", "draft")
    ]
    with pytest.raises(SkitError, match=r"^the model returned NaN logits: .+$"):
        decode(
            parse_method("fixed-k"),
            (runners[0], runners[1]),
            make_requests([[1, 2], [3]], 5),
            sampler=sampler,
        )
