"""The synthetic pair agrees as often, and as surely, as it is told to, whatever drafts with it."""

import itertools
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from command_line import error_line, skit_here
from emulated_card import emulated_cards
from tiny_models import AUTOREGRESSIVE, decode, make_requests, make_runner, outputs, random_prompts

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.agreement import Agreement
from specbench_kit.models.executors.base import Forward, Row, make_executor
from specbench_kit.models.pair import load_pair
from specbench_kit.models.runner import Append, Runner
from specbench_kit.models.synthetic import SyntheticModel
from specbench_kit.profilers.subject import random_model

VOCABULARY = 200
TOKENS = 1200
PROMPTS = make_requests(random_prompts([5, 9], VOCABULARY), TOKENS)


def runners(agreement: Agreement) -> tuple[Runner, Runner]:
    models = (
        SyntheticModel("target", None, VOCABULARY),
        SyntheticModel("draft", agreement, VOCABULARY),
    )
    target, draft = (make_runner(model, 2, TOKENS + 200) for model in models)
    return target, draft


def off_by(expected: float, agreement: Agreement, spec: str, **options: int) -> float:
    """Return how many standard errors the tokens per round differ from `expected`, but for rounds that an end cuts."""
    records = decode(parse_method(spec), runners(agreement), PROMPTS, **options).values()
    committed = [step.committed for record in records for step in record.rounds[:-1]]
    return abs(mean(committed) - expected) / (stdev(committed) / sqrt(len(committed)))


@pytest.mark.parametrize(
    "agreement",
    [
        Agreement((0.8, 0.1), spread=0.0),
        Agreement((0.8, 0.1), spread=1.0),
        Agreement((0.8, 0.1), spread=1.0, calibration=3.0),
    ],
)
def test_a_fixed_chain_yields_what_independent_tokens_yield(agreement: Agreement) -> None:
    expected = (1 - 0.8**5) / (1 - 0.8)  # 3.3616
    assert off_by(expected, agreement, "fixed-k:k=4", batch_size=2) < 3


def test_a_static_tree_yields_what_its_ranks_yield() -> None:
    ranks = (0.5, 0.3, 0.1)
    below = 0.8  # two children each
    expected = 1 + below + below**2 + below**2 * 0.5
    assert (
        off_by(expected, Agreement(ranks, spread=0.7), "specinfer:branching=2-2-1", batch_size=2)
        < 3
    )


def test_what_is_not_ranked_is_never_found_by_width() -> None:
    assert off_by(1.6, Agreement((0.4, 0.2)), "specinfer:branching=20", batch_size=2) < 3


def test_a_pipeline_waits_as_its_hit_rate_says() -> None:
    """One step per token, and as many more as there are stages behind the first after a miss."""
    hit_rate, stages = 0.9, 4
    agreement = Agreement((0.7, 0.2), spread=0.0)
    requests = make_requests(random_prompts([5], VOCABULARY), 600)
    records = decode(
        parse_method(f"specpipe:stages={stages},width=16,children=2"), runners(agreement), requests
    )
    record = records["000"]
    steps = sum(step.steps for step in record.rounds) / len(record.output_ids)
    assert steps == pytest.approx(1 + (1 - hit_rate) * (stages - 1), rel=0.08)


@pytest.mark.parametrize("spec", ["fixed-k", "specedge", "specpipe", "threshold", "eagle2-tree"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_every_way_of_drafting_is_lossless(spec: str, temperature: float) -> None:
    def answers(method: Method) -> dict[str, list[int]]:
        pair = runners(Agreement((0.6, 0.2, 0.1), correlation=0.5))
        return outputs(decode(method, pair, short, sampler=Sampler(temperature), batch_size=2))

    short = make_requests(random_prompts([3, 7], VOCABULARY), 40)
    assert answers(parse_method(spec)) == answers(AUTOREGRESSIVE)


def told_and_taken(agreement: Agreement) -> list[tuple[float, bool]]:
    """The draft's confidence at every place of a text of the target's, and whether it was right."""
    target, draft = runners(agreement)
    record = decode(AUTOREGRESSIVE, (target, draft), PROMPTS[:1])["000"]
    text = [*record.prompt_ids, *record.output_ids]
    forward = draft.forward([Append(draft.acquire(), text, keep=len(text))])
    best = forward.logits.softmax(-1).max(-1)
    pairs = list(zip(best.values.tolist(), (best.indices[:-1].tolist()), text[1:], strict=False))
    return [
        (confidence, token == true) for confidence, token, true in pairs[len(record.prompt_ids) :]
    ]


def share_right(pairs: Sequence[tuple[float, bool]]) -> float:
    return sum(right for _, right in pairs) / len(pairs)


def test_confidence_is_calibrated_and_tells_places_apart() -> None:
    pairs = sorted(told_and_taken(Agreement((0.7, 0.1), spread=1.0)))
    half = len(pairs) // 2
    for part in (pairs[:half], pairs[half:]):
        assert share_right(part) == pytest.approx(
            sum(confidence for confidence, _ in part) / len(part), abs=0.04
        )
    assert share_right(pairs[half:]) > share_right(pairs[:half]) + 0.2


def test_calibration_exaggerates() -> None:
    pairs = told_and_taken(Agreement((0.7, 0.1), spread=0.0, calibration=2.0))
    assert pairs[0][0] == pytest.approx(49 / 58, abs=1e-3)  # odds of 7 : 3, squared
    assert share_right(pairs) == pytest.approx(0.7, abs=0.04)


def test_correlation_holds_within_blocks() -> None:
    def neighbours(correlation: float) -> float:
        confidences = [
            confidence
            for confidence, _ in told_and_taken(
                Agreement((0.6,), spread=1.0, correlation=correlation, block=50)
            )
        ]
        middle = mean(confidences)
        spread = sum((confidence - middle) ** 2 for confidence in confidences)
        return sum((a - middle) * (b - middle) for a, b in itertools.pairwise(confidences)) / spread

    assert neighbours(0.0) == pytest.approx(0.0, abs=0.06)
    assert neighbours(0.8) == pytest.approx(0.8, abs=0.12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": (0.5, 0.6)}, "ranks must be falling chances"),
        ({"spread": 2.0}, "spread must lie in 0..1"),
        ({"calibration": 0.0}, "calibration must be above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(SkitError, match=words):
        Agreement(**options)  # type: ignore[arg-type]


def test_a_pair_that_is_half_synthetic_is_refused() -> None:
    assert "a synthetic model agrees with no other" in error_line(
        skit_here("bench", "--method", "fixed-k", "--target", "synthetic", "--draft", "bundled")
    )
    assert "give --draft synthetic:ranks=" in error_line(
        skit_here("bench", "--method", "fixed-k", "--target", "synthetic")
    )
    with pytest.raises(SkitError, match="no option but shape=NAME"):
        load_pair("synthetic:ranks=0.5", "synthetic")


SHAPES = """
family = "qwen3"
hidden_size = 32
layers = {layers}
heads = 4
kv_heads = 2
head_dim = 16
intermediate_size = 48
vocabulary = 300
tied = true
max_positions = 1024
"""


@pytest.fixture
def shaped(tmp_path: Path) -> tuple[str, str]:
    """The names of a target and a draft that compute forwards with random weights."""
    for name, layers in (("large", 3), ("small", 1)):
        (tmp_path / f"{name}.toml").write_text(SHAPES.format(layers=layers))
    return (
        f"synthetic:shape={tmp_path}/large.toml",
        f"synthetic:ranks=0.7+0.1,shape={tmp_path}/small.toml",
    )


@pytest.mark.parametrize("spec", ["fixed-k:k=3", "specedge:depth=3,budget=8,beams=4"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_random_weights_take_time_and_change_nothing(
    device: str, spec: str, shaped: tuple[str, str]
) -> None:
    requests = make_requests(random_prompts([70, 9, 5], VOCABULARY), 24)
    pairs = [load_pair("synthetic", "synthetic:ranks=0.7+0.1")]
    with emulated_cards(1):
        pairs.append(load_pair(*shaped, device=device, random_model=random_model))
        assert [pair.target.device.type for pair in pairs] == ["cpu", device.partition(":")[0]]
        plain, timed = (
            decode(parse_method(spec), pair.runners(2, 120), requests, batch_size=2)
            for pair in pairs
        )
    assert outputs(timed) == outputs(plain)
    accepted = [
        [[step.accepted for step in record.rounds] for record in records.values()]
        for records in (plain, timed)
    ]
    assert accepted[0] == accepted[1]


@pytest.mark.parametrize(
    "sampler", [Sampler(), Sampler(0.7), Sampler(0.7, top_p=0.9, top_k=50)], ids=str
)
def test_probabilities_are_the_same_on_every_processor(sampler: Sampler) -> None:
    """A processor decides in which order a vocabulary is summed: any order gives the same bits."""
    _, draft = runners(Agreement((0.6, 0.2, 0.1), spread=0.8))
    slot = draft.acquire()
    logits = draft.forward([Append(slot, list(range(60)), keep=60)]).logits
    order = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(1))
    tokens = list(range(60))

    def known(logits: torch.Tensor) -> DraftForward:
        return DraftForward(Forward([logits]), sampler)

    mine, reordered = known(logits), known(logits[:, order])
    assert torch.equal(mine.probabilities[:, order], reordered.probabilities)
    assert [mine.stats(row, 0) for row in tokens] == [
        reordered.stats(row, order.tolist().index(0)) for row in tokens
    ]
    single = logits.float()
    assert not torch.equal(
        known(single).probabilities[:, order], known(single[:, order]).probabilities
    )


def test_random_weights_compute_what_the_same_tokens_take(shaped: tuple[str, str]) -> None:
    """Every forward, and every move of KV, is one of the body too."""
    pair = load_pair(*shaped, device="cpu", random_model=random_model)
    runner = pair.target.runner(1, 64, pair.vocabulary)
    body = runner.executor._body  # type: ignore[attr-defined]
    slot = runner.acquire()
    runner.forward([Append(slot, [301, 5, 9], keep=3)])
    runner.commit(slot, range(3))
    runner.forward([Append(slot, [7, 8, 6], [-1, -1, 1], keep=3)])
    runner.commit(slot, [1, 2])
    following = body.forward([Row(0, [4], 5, 5)])[0]
    text = [1, 5, 9, 8, 6, 4]  # 301 is no token of the body, and becomes one
    expected = make_executor(pair.target.shell.body, 1, 64, None).forward([Row(0, text, 0, 0)])[0]
    torch.testing.assert_close(following, expected, atol=1e-4, rtol=1e-4)
    assert pair.target.describe(str).parameters == pair.target.shell.body.num_parameters()
    assert pair.target.source.label == "synthetic/target:shape=large"
    assert pair.target.context == pair.target.shell.body.config.max_position_embeddings == 1024


def test_a_report_says_that_weights_were_random(shaped: tuple[str, str], tmp_path: Path) -> None:
    options = [
        "--method",
        "fixed-k",
        "--limit",
        2,
        "--max-new-tokens",
        8,
        "--device",
        "cpu",
        "--out",
        tmp_path / "out",
    ]
    done = skit_here("bench", "--target", shaped[0], "--draft", shaped[1], *options)
    assert done.returncode == 0, done.stderr
    assert "RANDOM WEIGHTS: synthetic/target:shape=large" in " ".join(done.stdout.split())
    assert str(tmp_path) not in "".join(
        path.read_text() for path in (tmp_path / "out").rglob("run.json")
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--deployment", "specedge"],
            "shape=qwen3-0.6b has no effect here, since nothing is timed: leave it out",
        ),
        (
            ["--target", "synthetic:shape=qwen3-0.6b,ranks=0.8"],
            "give synthetic:ranks=0.8 as the draft",
        ),
        (["--target", "synthetic:shape=nonsense"], "unknown architecture 'nonsense'"),
        (["--target", "synthetic:shape="], "shape= needs a name, like shape=qwen3-0.6b"),
    ],
)
def test_shapes_that_nothing_can_be_done_with(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    target = ["--target", "synthetic:shape=qwen3-0.6b", "--draft", "synthetic:ranks=0.8"]
    done = skit_here(
        "bench", *target, "--method", "fixed-k", "--limit", 1, *arguments, "--out", tmp_path
    )
    assert said in error_line(done)
