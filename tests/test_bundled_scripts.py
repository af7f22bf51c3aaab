"""The scripts behind the bundled draft and head: what the target writes, what is kept of it, what is learned."""

import importlib
import random
import re
import sys
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from specbench_kit.datasets.base import Prompt
from specbench_kit.models.draft_library import training_prompts
from specbench_kit.models.executors.base import make_executor
from tests.tiny_models import plain_greedy, random_prompts, tiny_llama

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
answers: Any = importlib.import_module("bundled_answers")
distillation: Any = importlib.import_module("distil_bundled_draft")
head_training: Any = importlib.import_module("train_bundled_head")

MARK = [5, 6]


def documents(count: int, seed: int = 0) -> list[Any]:
    """Of 10 to 30 tokens each, the last 4 to 9 to be learned."""
    rng = np.random.default_rng(seed)
    made = []
    for length, learned in zip(rng.integers(10, 30, count), rng.integers(4, 9, count), strict=True):
        likely = np.stack([rng.permutation(64)[: answers.TOP] for _ in range(learned)]).astype(np.uint16)
        probability = rng.dirichlet(np.ones(answers.TOP), learned).astype(np.float16)
        tokens = rng.integers(2, 64, length).astype(np.uint16)
        made.append(answers.Document(tokens, int(length - learned), likely, probability))
    return made


def test_a_changed_problem_has_other_digits_and_each_name_replaced_by_one() -> None:
    problem = "Sarah has 20 pens on Monday. Tom gives Sarah 105 more; Sarah's sister Mary has none."
    other = answers.changed(problem, random.Random(0))
    renamed = dict(zip(re.findall(r"[A-Za-z]+", problem), re.findall(r"[A-Za-z]+", other), strict=True))
    assert re.fullmatch(r"\w+ has [1-9]{2} pens on Monday\. \w+ gives \w+ [1-9]{3} more; .*", other)
    assert other.count(renamed["Sarah"]) == 3
    assert len({renamed[name] for name in ("Sarah", "Tom", "Mary")}) == 3
    assert {word for word, new in renamed.items() if new != word} <= {"Sarah", "Tom", "Mary"}


@pytest.mark.parametrize("slots", [1, 3])
def test_answers_are_the_targets_greedy_ones(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ANSWER_TOKENS", 12)
    model = tiny_llama()
    prompts = random_prompts([4, 9, 6, 12, 5], 64)
    found = answers.written(make_executor(model, slots, 64, None), zip(prompts * 9, repeat(True)), MARK, len(prompts))
    outputs = {tuple(one.tokens[: one.start]): one for one in found}
    for prompt in prompts:
        expected, _ = plain_greedy(model, prompt, 12)
        answer = expected[: expected.index(answers.EOS_ID) + 1] if answers.EOS_ID in expected else expected
        one = outputs[tuple(prompt)]
        assert one.tokens[one.start :].tolist() == answer == one.likely[:, 0].tolist()
        assert one.probability.sum(-1) == pytest.approx(1, abs=1e-2)


def test_a_problem_of_the_targets_own_ends_with_the_mark_and_is_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ANSWER_TOKENS", 6)
    torch.manual_seed(0)
    executor = make_executor(tiny_llama(), 4, 256, None)
    mark = [7]
    for one in answers.written(executor, repeat(([2, 3], False)), mark, 5):
        assert one.tokens[one.start - 1] == mark[0]
        assert mark[0] not in one.tokens[2 : one.start - 1]
        assert len(one.tokens) - one.start == len(one.likely) <= 6


def test_shards_keep_documents(tmp_path: Path) -> None:
    written = documents(7)
    answers.write_shard(tmp_path / "0-0.npz", written)
    read = answers.read_shard(tmp_path / "0-0.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["0-0.npz"]
    for one, other in zip(written, read, strict=True):
        assert one.start == other.start
        for name in ("tokens", "likely", "probability"):
            assert np.array_equal(getattr(one, name), getattr(other, name))


def test_a_head_learns_from_shards_and_remembers_the_problems(tmp_path: Path) -> None:
    written = documents(7)
    answers.write_shard(tmp_path / "0-0.npz", written)
    for one, text in zip(written, head_training.answered(tmp_path), strict=True):
        assert [*text.prompt, *text.answer] == one.tokens.tolist()
        assert len(text.prompt) == one.start
    head_training.remember(tmp_path, ["<s>Question: How many?\nAnswer: 3</s>", "<s>Question: Why?\nAnswer: So.</s>"])
    found = training_prompts(tmp_path)
    assert found.prompts == {Prompt("", "", (question,)).fingerprint for question in ("How many?", "Why?")}
    assert found.part == "train"


def test_shards_are_used_in_turn_whole_and_new_ones_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distillation, "TOKENS_PER_STEP", 100)
    for shard in range(2):
        answers.write_shard(tmp_path / f"0-{shard}.npz", documents(20, shard))
    batches = distillation.batches(tmp_path, 4, random.Random(0))
    first: list[Any] = []
    while len(first) < 40:
        first += next(batches)
    assert {bytes(one.tokens) for one in first} == {bytes(one.tokens) for n in range(2) for one in documents(20, n)}
    answers.write_shard(tmp_path / "1-0.npz", documents(20, 2))
    assert {bytes(one.tokens) for one in documents(20, 2)} & {
        bytes(one.tokens) for batch in islice(batches, 8) for one in batch
    }


def test_the_loss_is_the_cross_entropy_to_the_targets_probabilities_over_what_is_learned() -> None:
    draft = tiny_llama().requires_grad_(True)
    batch = documents(5)
    loss = distillation.batch_loss(draft, batch)
    loss.backward()
    found = {name: weight.grad.clone() for name, weight in draft.named_parameters()}
    draft.zero_grad()
    parts, count = [], 0
    for one in batch:
        logits = draft(input_ids=torch.from_numpy(one.tokens.astype(np.int64))[None]).logits[0, one.start - 1 : -1]
        wanted = torch.zeros_like(logits)
        probability = torch.from_numpy(one.probability.astype(np.float32))
        wanted.scatter_(-1, torch.from_numpy(one.likely.astype(np.int64)), probability / probability.sum(-1, True))
        parts.append(cross_entropy(logits, wanted, reduction="sum"))
        count += len(one.likely)
    exact = sum(parts) / count
    exact.backward()
    assert loss.item() == pytest.approx(exact.item(), rel=0.02)
    for name, weight in draft.named_parameters():
        assert torch.nn.functional.cosine_similarity(found[name].flatten(), weight.grad.flatten(), dim=0) > 0.99


def test_the_average_keeps_a_share_of_the_old_weights() -> None:
    new, old = tiny_llama(seed=0), tiny_llama(seed=1)
    expected = [0.6 * one + 0.4 * other for one, other in zip(new.parameters(), old.parameters(), strict=True)]
    distillation.average(new, old, 0.4)
    for weight, wanted in zip(new.parameters(), expected, strict=True):
        assert torch.allclose(weight, wanted, atol=1e-6)
