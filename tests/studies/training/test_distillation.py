"""Answers kept on disk, and drafts trained on them."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from command_line import TinyPair
from tiny_heads import put_beside
from tiny_models import decode, make_requests, make_runner, plain_greedy, random_prompts, tiny_llama
from transformers import PreTrainedModel

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.catalogue import locate
from specbench_kit.models.drafts.reduced import is_reduced_draft, load_draft, new_draft, save_draft
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.pair import load_apart, load_pair
from specbench_kit.models.runner import Append, Runner
from specbench_kit.profilers.subject import find_draft_subject, find_subject
from specbench_kit.studies.training.distillation.answers import (
    Answer,
    TrainingAnswerKey,
    TrainingAnswerStore,
    choose_tokens_of_rows,
    require_fresh,
    teach,
)
from specbench_kit.studies.training.distillation.batches import (
    RoundAcceptance,
    accepted_counts,
    batches,
    epoch,
)
from specbench_kit.studies.training.distillation.options import DraftRecipe, HeadRecipe
from specbench_kit.studies.training.distillation.vocabulary import (
    ReducedTargets,
    choose_size,
    choose_tokens,
    index_of,
)
from specbench_kit.studies.training.draft_training import DraftLoss
from specbench_kit.studies.training.head_training import HeadLoss, new_head

LAYERS = (0, 1, 2)
KEY = TrainingAnswerKey("target", "prompts", 24, 0.5, 0, LAYERS)


def greedy_answers(model: PreTrainedModel, lengths: Sequence[int], count: int = 24) -> list[Answer]:
    """The model's own answers to random prompts, with its states."""
    runner = make_runner(model, 1, 128)
    return [
        teach(runner, index, prompt, plain_greedy(model, prompt, count)[0], LAYERS)
        for index, prompt in enumerate(random_prompts(lengths, model.config.vocab_size))
    ]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_llama()


@pytest.fixture(scope="module")
def answers(model: PreTrainedModel) -> list[Answer]:
    return greedy_answers(model, [5, 9, 6, 12, 7])


def test_a_store_returns_what_was_written_and_knows_which_prompts_are_answered(
    answers: list[Answer], tmp_path: Path
) -> None:
    store = TrainingAnswerStore.open(tmp_path, KEY)
    store.append(answers[:3])
    store.append(answers[3:])
    again = TrainingAnswerStore.open(tmp_path, KEY)
    assert again.key == KEY
    assert again.answered() == set(range(5))
    read = [answer for path in again.shards for answer in again.read(path)]
    for written, answer in zip(answers, read, strict=True):
        assert answer.tokens == written.tokens
        assert torch.equal(answer.top_tokens, written.top_tokens)
        assert answer.states is not None
        assert torch.equal(answer.states, written.states)
    assert all(answer.states is None for answer in again.read(again.shards[0], states=False))


def test_answers_with_states_serve_who_needs_none_and_other_seeds_have_folders_of_their_own(
    tmp_path: Path,
) -> None:
    with_states = TrainingAnswerStore.open(tmp_path, KEY)
    without = TrainingAnswerKey("target", "prompts", 24, 0.5, 0)
    assert TrainingAnswerStore.open(tmp_path, without).folder == with_states.folder
    other_seed = TrainingAnswerKey("target", "prompts", 24, 0.5, 1)
    assert TrainingAnswerStore.open(tmp_path, other_seed).folder != with_states.folder


def test_kept_tops_and_states_are_those_of_the_model(
    model: PreTrainedModel, answers: list[Answer]
) -> None:
    answer = answers[0]
    with torch.inference_mode():
        output = model(torch.tensor([answer.tokens[:-1]]), output_hidden_states=True)
    logits = output.logits[0, len(answer.prompt) - 1 :]
    assert answer.top_tokens[:, 0].tolist() == logits.argmax(-1).tolist() == list(answer.output)
    assert torch.allclose(answer.top_logits.float(), logits.topk(32).values, atol=2e-2)
    states = torch.cat([output.hidden_states[layer][0] for layer in LAYERS], -1)
    assert answer.states is not None
    assert torch.allclose(answer.states.float(), states, atol=3e-2, rtol=1e-2)


def test_states_of_another_model_are_refused(
    model: PreTrainedModel, answers: list[Answer], tmp_path: Path
) -> None:
    store = TrainingAnswerStore.open(tmp_path, KEY)
    store.append(answers)
    require_fresh(store, make_runner(model, 1, 128), LAYERS)
    with pytest.raises(SkitError, match="delete the folder"):
        require_fresh(store, make_runner(tiny_llama(seed=3), 1, 128), LAYERS)


def test_rounds_begin_where_the_one_before_ended() -> None:
    generator = torch.Generator().manual_seed(0)
    hits = torch.rand(3, 40, generator=generator) < 0.6
    counts, start = [], 1
    while start + 3 <= 40:
        accepted = next((step for step in range(3) if not hits[step, start + step]), 3)
        counts.append(accepted)
        start += accepted + 1
    assert list(accepted_counts(hits, 1)) == counts
    acceptance = RoundAcceptance.of(counts, 3)
    assert acceptance.length == pytest.approx(1 + sum(counts) / len(counts))
    assert acceptance.by_position[0] == pytest.approx(
        sum(count > 0 for count in counts) / len(counts)
    )


def test_targets_are_renormalised_over_the_tokens_that_can_be_drafted() -> None:
    tokens = torch.tensor([1, 4, 9])
    top_tokens, top_logits = (
        torch.tensor([[4, 2, 9], [2, 3, 5]]),
        torch.tensor([[3.0, 2.0, 1.0], [1.0, 0.5, 0.2]]),
    )
    targets = ReducedTargets.of(top_tokens, top_logits, index_of(tokens, 10))
    shares = torch.tensor([3.0, 1.0]).softmax(-1)
    assert targets.shares[0].tolist() == pytest.approx([float(shares[0]), 0.0, float(shares[1])])
    assert targets.shares[1].tolist() == [0.0, 0.0, 0.0]
    logits = torch.tensor([[0.3, 1.2, -0.4], [0.0, 0.0, 1.0]])
    scores = logits[0].log_softmax(-1)
    expected = -(shares[0] * scores[1] + shares[1] * scores[2]) / 2
    assert float(targets.loss(logits)) == pytest.approx(float(expected))
    assert targets.hits(logits).tolist() == [True, False]


def test_the_vocabulary_grows_with_what_it_covers_and_shrinks_with_its_cost() -> None:
    even = Counter(dict.fromkeys(range(40_000), 1))
    steep = Counter({token: 10_000 // (token + 1) ** 2 for token in range(40_000)})
    assert choose_size(steep, 49_152, 576, 5_000_000, 135_000_000) == 1024
    assert choose_size(even, 49_152, 576, 5_000_000, 135_000_000) > 8192
    chosen = choose_tokens(Counter({7: 5, 3: 9, 8: 1}), 2, 10, always=(8,))
    assert chosen.tolist() == [3, 8]


def live_counts(
    spec: str, runners: tuple[Runner, Runner], answers: Sequence[Answer], steps: int
) -> list[int]:
    """Accepted tokens of all rounds of decoding these prompts whose drafts end within the answer."""
    length = len(answers[0].output)
    records = decode(
        parse_method(spec), runners, make_requests([answer.prompt for answer in answers], length)
    )
    counts = []
    for name in sorted(records):
        start = 0
        for entry in records[name].rounds:
            if entry.submitted == steps and start + steps <= length:
                counts.append(entry.accepted)
            start += entry.committed
    return counts


def test_a_heads_acceptance_on_answers_is_what_it_reaches_live(
    model: PreTrainedModel, answers: list[Answer]
) -> None:
    head = new_head(model, torch.arange(64), 0, LAYERS).eval()
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(weight.bfloat16())
    computed = HeadLoss(head, HeadRecipe(), 64).acceptance([answers], steps=2)
    target = make_runner(model, 1, 128)
    put_beside(target, head)
    live = live_counts("eagle:k=2", (target, target), answers, 2)
    assert sum(live) > 0
    assert computed == RoundAcceptance.of(live, 2)


def test_a_drafts_acceptance_on_answers_is_what_it_reaches_live(
    model: PreTrainedModel, answers: list[Answer]
) -> None:
    draft = new_draft(model, (0,), torch.arange(0, 64, 2)).eval()
    computed = DraftLoss(draft, DraftRecipe()).acceptance([answers], length=3)
    runners = make_runner(model, 1, 128), make_runner(draft, 1, 128)
    live = live_counts("fixed-k:k=3", runners, answers, 3)
    assert sum(live) > 0
    assert computed == RoundAcceptance.of(live, 3)


def test_a_draft_of_all_layers_and_tokens_is_the_target(model: PreTrainedModel) -> None:
    draft = new_draft(model, (0, 1), torch.arange(64))
    tokens = torch.tensor(random_prompts([12], 64))
    assert torch.equal(draft(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("in_8_bits", [False, True])
def test_a_saved_draft_drafts_the_same_on_every_executor(
    model: PreTrainedModel, in_8_bits: bool, tmp_path: Path
) -> None:
    tokens = torch.arange(0, 64, 2)
    save_draft(new_draft(model, (1,), tokens), tmp_path, in_8_bits=in_8_bits)
    assert is_reduced_draft(tmp_path)
    draft = load_draft(tmp_path, model)
    prompt = random_prompts([12], 64)[0]
    expected = draft(torch.tensor([prompt])).logits[0]
    assert set(expected.argmax(-1).tolist()) <= set(tokens.tolist())
    for name in (None, "transformers"):
        runner = Runner(make_executor(draft, 1, 64, 64, name))
        forward = runner.forward([Append(runner.acquire(), prompt, keep=len(prompt))])
        assert forward.argmax()[0] == expected.argmax(-1).tolist()
        assert torch.allclose(forward[0], expected, atol=1e-4)


def test_a_draft_without_its_target_reads_the_embedding_in_the_targets_files(
    tiny: TinyPair, tmp_path: Path
) -> None:
    target, folder = load_pair(str(tiny.target), None).target, tmp_path / "draft"
    save_draft(new_draft(target.model, (1,), torch.arange(0, 64, 2)), folder)
    with_target = load_pair(str(tiny.target), str(folder)).draft
    apart = load_apart(locate(str(folder), "draft"), target.source)
    text = torch.tensor([list(b"How far?")])
    assert with_target is not None
    assert torch.equal(apart.model(text).logits, with_target.model(text).logits)
    profiled = find_draft_subject(str(folder), find_subject(str(tiny.target), "target"))
    loaded = profiled.load(torch.device("cpu"), "float32")
    assert torch.equal(loaded.model(text).logits, with_target.model(text).logits)


def test_a_draft_for_another_target_or_with_damaged_tokens_is_refused(
    model: PreTrainedModel, tmp_path: Path
) -> None:
    save_draft(new_draft(model, (0,), torch.arange(32)), tmp_path)
    with pytest.raises(SkitError, match="give the target that it was trained for"):
        load_draft(tmp_path, tiny_llama(vocab_size=80))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(SkitError, match="cannot read the draft"):
        load_draft(tmp_path, model)


def test_every_answer_but_those_left_out_is_trained_on_once_per_epoch(
    answers: list[Answer], tmp_path: Path
) -> None:
    store = TrainingAnswerStore.open(tmp_path, KEY)
    store.append(answers[:2])
    store.append(answers[2:])
    drawn = [
        answer.index for batch in epoch(store, {3}, 64, False, random.Random(0)) for answer in batch
    ]
    assert sorted(drawn) == [0, 1, 2, 4]
    assert all(
        len(batch) * max(map(len, batch)) <= 64 or len(batch) == 1
        for batch in batches(answers, 64, random.Random(0))
    )


def test_answers_are_drawn_from_the_softmax_at_their_temperature_and_greedy_ones_take_the_best() -> (
    None
):
    draws = 20_000
    row = torch.tensor([1.0, -2.0, 0.5, 0.0, -torch.inf])
    generator = torch.Generator().manual_seed(4)
    temperatures = [0.7] * draws + [0.0]
    tokens = choose_tokens_of_rows(
        row.expand(draws + 1, -1), [0] * (draws + 1), temperatures, [generator] * (draws + 1)
    )
    assert tokens[-1] == 0
    shares = torch.bincount(torch.tensor(tokens[:-1]), minlength=5) / draws
    # Four standard errors of a share are .014.
    assert torch.allclose(shares, (row / 0.7).softmax(-1), atol=0.014)
    assert shares[-1] == 0


def test_a_sampled_answer_does_not_depend_on_what_is_answered_beside_it() -> None:
    rows = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))

    def generators() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed) for seed in range(3)]

    together = choose_tokens_of_rows(rows, [0, 0, 0], [1.0, 0.0, 0.8], generators())
    alone = choose_tokens_of_rows(rows[2:], [0], [0.8], generators()[2:])
    assert together[2:] == alone
