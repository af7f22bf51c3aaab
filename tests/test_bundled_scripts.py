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
    """Make documents of 10 to 30 tokens each, the last 4 to 9 to be learned."""
    rng = np.random.default_rng(seed)
    made_up_documents = []
    for length, learned in zip(rng.integers(10, 30, count), rng.integers(4, 9, count), strict=True):
        likely = np.stack([rng.permutation(64)[: answers.TOP] for _ in range(learned)]).astype(
            np.uint16
        )
        probability = rng.dirichlet(np.ones(answers.TOP), learned).astype(np.float16)
        tokens = rng.integers(2, 64, length).astype(np.uint16)
        made_up_documents.append(
            answers.Document(tokens, int(length - learned), likely, probability)
        )
    return made_up_documents


def test_a_changed_problem_has_other_digits_and_each_name_replaced_by_one() -> None:
    problem = "Sarah has 20 pens on Monday. Tom gives Sarah 105 more; Sarah's sister Mary has none."
    changed_problem = answers.changed(problem, random.Random(0))
    renamed = dict(
        zip(
            re.findall(r"[A-Za-z]+", problem),
            re.findall(r"[A-Za-z]+", changed_problem),
            strict=True,
        )
    )
    assert re.fullmatch(
        r"\w+ has [1-9]{2} pens on Monday\. \w+ gives \w+ [1-9]{3} more; .*", changed_problem
    )
    assert changed_problem.count(renamed["Sarah"]) == 3
    assert len({renamed[name] for name in ("Sarah", "Tom", "Mary")}) == 3
    assert {word for word, new in renamed.items() if new != word} <= {"Sarah", "Tom", "Mary"}


@pytest.mark.parametrize("slots", [1, 3])
def test_answers_are_the_targets_greedy_ones(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ANSWER_TOKENS", 12)
    model = tiny_llama()
    prompts = random_prompts([4, 9, 6, 12, 5], 64)
    written_documents = answers.written(
        make_executor(model, slots, 64, None), zip(prompts * 9, repeat(True)), MARK, len(prompts)
    )
    outputs = {tuple(document.tokens[: document.start]): document for document in written_documents}
    for prompt in prompts:
        expected, _ = plain_greedy(model, prompt, 12)
        answer = (
            expected[: expected.index(answers.EOS_ID) + 1]
            if answers.EOS_ID in expected
            else expected
        )
        document = outputs[tuple(prompt)]
        assert (
            document.tokens[document.start :].tolist() == answer == document.likely[:, 0].tolist()
        )
        assert document.probability.sum(-1) == pytest.approx(1, abs=1e-2)


def test_a_problem_of_the_targets_own_ends_with_the_mark_and_is_not_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "ANSWER_TOKENS", 6)
    torch.manual_seed(0)
    executor = make_executor(tiny_llama(), 4, 256, None)
    mark = [7]
    for document in answers.written(executor, repeat(([2, 3], False)), mark, 5):
        assert document.tokens[document.start - 1] == mark[0]
        assert mark[0] not in document.tokens[2 : document.start - 1]
        assert len(document.tokens) - document.start == len(document.likely) <= 6


def test_shards_keep_documents(tmp_path: Path) -> None:
    written = documents(7)
    answers.write_shard(tmp_path / "0-0.npz", written)
    read = answers.read_shard(tmp_path / "0-0.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["0-0.npz"]
    for before, after in zip(written, read, strict=True):
        assert before.start == after.start
        for name in ("tokens", "likely", "probability"):
            assert np.array_equal(getattr(before, name), getattr(after, name))


def test_a_head_learns_from_shards_and_remembers_the_problems(tmp_path: Path) -> None:
    written = documents(7)
    answers.write_shard(tmp_path / "0-0.npz", written)
    for document, text in zip(written, head_training.answered(tmp_path), strict=True):
        assert [*text.prompt, *text.answer] == document.tokens.tolist()
        assert len(text.prompt) == document.start
    head_training.remember(
        tmp_path, ["<s>Question: How many?\nAnswer: 3</s>", "<s>Question: Why?\nAnswer: So.</s>"]
    )
    learned = training_prompts(tmp_path)
    assert learned.prompts == {
        Prompt("", "", (question,)).fingerprint for question in ("How many?", "Why?")
    }
    assert learned.part == "train"


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
    assert {bytes(document.tokens) for document in first} == {
        bytes(document.tokens) for n in range(2) for document in documents(20, n)
    }
    answers.write_shard(tmp_path / "1-0.npz", documents(20, 2))
    assert {bytes(document.tokens) for document in documents(20, 2)} & {
        bytes(document.tokens) for batch in islice(batches, 8) for document in batch
    }


def test_the_loss_is_the_cross_entropy_to_the_targets_probabilities_over_what_is_learned() -> None:
    draft = tiny_llama().requires_grad_(True)
    batch = documents(5)
    loss = distillation.batch_loss(draft, batch)
    loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in draft.named_parameters()}
    draft.zero_grad()
    parts, count = [], 0
    for document in batch:
        logits = draft(input_ids=torch.from_numpy(document.tokens.astype(np.int64))[None]).logits[
            0, document.start - 1 : -1
        ]
        probabilities = torch.zeros_like(logits)
        probability = torch.from_numpy(document.probability.astype(np.float32))
        probabilities.scatter_(
            -1,
            torch.from_numpy(document.likely.astype(np.int64)),
            probability / probability.sum(-1, True),
        )
        parts.append(cross_entropy(logits, probabilities, reduction="sum"))
        count += len(document.likely)
    exact = sum(parts) / count
    exact.backward()
    assert loss.item() == pytest.approx(exact.item(), rel=0.02)
    for name, weight in draft.named_parameters():
        assert (
            torch.nn.functional.cosine_similarity(
                gradients[name].flatten(), weight.grad.flatten(), dim=0
            )
            > 0.99
        )


def test_the_average_keeps_a_share_of_the_old_weights() -> None:
    new, old = tiny_llama(seed=0), tiny_llama(seed=1)
    expected = [
        0.6 * new_weight + 0.4 * old_weight
        for new_weight, old_weight in zip(new.parameters(), old.parameters(), strict=True)
    ]
    distillation.average(new, old, 0.4)
    for weight, expected_weight in zip(new.parameters(), expected, strict=True):
        assert torch.allclose(weight, expected_weight, atol=1e-6)
