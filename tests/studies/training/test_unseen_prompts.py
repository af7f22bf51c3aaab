"""Predictors learn from prompts that no benchmark judges them on, and say when one does."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from msgspec import structs
from report_builders import deployment_description
from tiny_predictors import confidence_predictor

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import Prompt
from specbench_kit.datasets.loading import leave_out, load
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.draft_library import RECORD
from specbench_kit.predictors import library
from specbench_kit.predictors.artefact import load as load_predictor
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.runs.document import RunDescription
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.unseen_prompts import count_seen, without_seen
from specbench_kit.studies.training.wording import (
    ContenderDecoding,
    ContenderSummary,
    Leaders,
    RatioEstimate,
    headline,
)

SETTINGS = BenchSettings(("fixed-k",))


@dataclass(frozen=True)
class Trained(FixedK):
    """A method that learned from some prompts."""

    prompts: frozenset[str] = frozenset()
    apart: bool = False

    @property
    def trained_on(self) -> frozenset[str]:
        return self.prompts

    @property
    def trained_on_reserved(self) -> bool:
        return self.apart


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """GSM8K with a train split, whose questions are others."""
    (tmp_path / "gsm8k").mkdir()
    for split in ("test", "train"):
        rows = [
            json.dumps({"question": f"{split} {number}", "answer": "1"}) for number in range(40)
        ]
        (tmp_path / "gsm8k" / f"{split}.jsonl").write_text("\n".join(rows))
    return tmp_path


def test_training_takes_the_train_split(data: Path) -> None:
    train = load("gsm8k", data_dir=data, allow_sample=False, limit=10, seed=0, to_train=True)
    assert {prompt.turns[0].split()[0] for prompt in train.prompts} == {"train"}
    assert (train.part, train.location, len(train.prompts)) == ("train", "gsm8k/train.jsonl", 10)


def test_without_a_train_split_a_hash_reserves_some_of_the_prompts(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(
        "".join(json.dumps({"prompt": f"prompt {number}"}) + "\n" for number in range(1000))
    )
    everything = load(str(file), data_dir=None, allow_sample=False, limit=None, seed=0)
    reserved = load(str(file), data_dir=None, allow_sample=False, limit=None, seed=0, to_train=True)
    assert (everything.part, reserved.part) == (None, "reserved")
    assert 250 <= len(reserved.prompts) <= 350
    assert {prompt.id for prompt in reserved.prompts} == {
        prompt.id for prompt in everything.prompts if prompt.is_reserved
    }


def test_the_same_text_has_the_same_fingerprint_wherever_it_is_from() -> None:
    assert (
        Prompt("a", "x", ("one",)).fingerprint == Prompt("b", "y", ("one",), chat=False).fingerprint
    )
    assert Prompt("a", "x", ("one",)).fingerprint != Prompt("a", "x", ("one", "two")).fingerprint


def test_a_benchmark_leaves_out_what_was_set_apart_and_else_what_it_is_told_to(data: Path) -> None:
    dataset = load("gsm8k", data_dir=data, allow_sample=False, limit=None, seed=0)
    learned = frozenset(prompt.fingerprint for prompt in dataset.prompts[:7])
    method = Trained(prompts=learned)
    assert count_seen(dataset, method, {}) == 7
    assert without_seen(dataset, [method, FixedK()], SETTINGS, {}) == dataset
    for methods, settings in (
        ([replace(method, apart=True)], SETTINGS),
        ([method], replace(SETTINGS, exclude_seen=True)),
    ):
        remaining = without_seen(dataset, [*methods, FixedK()], settings, {})
        assert remaining.prompts == dataset.prompts[7:]
        assert remaining.digest != dataset.digest
        assert remaining.describe().left_out == [
            prompt.fingerprint for prompt in dataset.prompts[:7]
        ]
    with pytest.raises(SkitError, match="was trained on every prompt of gsm8k"):
        leave_out(dataset, {prompt.fingerprint for prompt in dataset.prompts}, None, 0)


def test_what_a_head_learned_from_counts_for_the_methods_that_draft_with_it(
    data: Path, tmp_path: Path
) -> None:
    dataset = load("gsm8k", data_dir=data, allow_sample=False, limit=None, seed=0)
    prompts, heads = [prompt.fingerprint for prompt in dataset.prompts[:5]], {"head:auto": tmp_path}
    method, settings = parse_method("eagle"), replace(SETTINGS, exclude_seen=True)
    assert count_seen(dataset, method, heads) == 0
    for part, unasked in (("train", 40), ("reserved", 35)):
        (tmp_path / RECORD).write_text(json.dumps({"prompts": prompts, "dataset": {"part": part}}))
        assert count_seen(dataset, method, heads) == 5
        assert count_seen(dataset, FixedK(), heads) == 0
        assert len(without_seen(dataset, [method], SETTINGS, heads).prompts) == unasked
        assert (
            without_seen(dataset, [method, FixedK()], settings, heads).prompts
            == dataset.prompts[5:]
        )
    (tmp_path / RECORD).write_text('{"prompts": [')
    with pytest.raises(
        SkitError, match=r"cannot read what the head was trained on in .*: train it again"
    ):
        count_seen(dataset, method, heads)


def test_a_limit_counts_the_prompts_that_remain(data: Path) -> None:
    few = load("gsm8k", data_dir=data, allow_sample=False, limit=5, seed=0)
    remaining = leave_out(few, {prompt.fingerprint for prompt in few.prompts}, 5, 0)
    assert len(remaining.prompts) == 5
    assert not set(remaining.prompts) & set(few.prompts)


def test_a_report_warns_of_what_the_predictor_has_to_do_with_the_run() -> None:
    run = {
        "method": "w",
        "dataset": {"count": 20},
        "seen_prompts": 6,
        "uses": {"predictor": {"threshold": 0.0, "max_draft": 5, "deployment": "wan"}},
    }
    assert setting_cautions(RunDescription.read(run)) == [
        "SEEN PROMPTS: the predictor or the head of w was trained on 6 of these 20 prompts; --exclude-seen leaves them "
        "out.",
        "FIXED LENGTH: the predictor of w lets every token pass (threshold 0), so that it drafts as fixed-k:k=5 does.",
        "OTHER DEPLOYMENT: the predictor of w was tuned for 'wan', but time is that of 'local'.",
    ]
    assert (
        setting_cautions(RunDescription(method="w", uses={"predictor": {"threshold": 0.5}})) == []
    )


def test_a_deployment_is_another_one_by_its_name_or_values_and_not_because_a_trace_was_recorded_here() -> (
    None
):
    changed = {
        "method": "w",
        "uses": {"predictor": {"threshold": 0.5, "deployment": "wan with other values"}},
    }
    assert setting_cautions(
        structs.replace(RunDescription.read(changed), deployment=deployment_description(name="wan"))
    ) == ["OTHER DEPLOYMENT: the predictor of w was tuned for 'wan' with other values than here."]
    run = {"method": "w", "uses": {"predictor": {"threshold": 0.5, "deployment": "local"}}}
    replayed, wan = (
        structs.replace(RunDescription.read(run), deployment=deployment_description(name=name))
        for name in ("recorded", "wan")
    )
    assert setting_cautions(replayed) == []
    assert setting_cautions(wan) == [
        "OTHER DEPLOYMENT: the predictor of w was tuned for 'local', but time is that of 'wan'."
    ]


def test_the_bundled_predictor_learned_from_a_train_split_and_knows_its_prompts() -> None:
    predictor = load_predictor(library.BUNDLED / "logistic")
    assert (
        len(predictor.prompts),
        predictor.training["dataset"]["part"],
        predictor.deployment,
    ) == (
        200,
        "train",
        "local",
    )


@pytest.mark.parametrize(
    "training",
    [
        {"prompts": "all"},
        {"prompts": [1]},
        {"dataset": [1]},
        {"config": 3},
        {"config": {"deployment": 7}},
    ],
)
def test_a_garbled_description_of_the_training_is_refused(
    training: dict[str, object], tmp_path: Path
) -> None:
    predictor = load_predictor(confidence_predictor(tmp_path / "mine"))
    with pytest.raises(SkitError, match=r"a predictor's training has not the form"):
        replace(predictor, training=training)


@pytest.mark.parametrize(
    ("interval", "doubted"),
    [
        ((0.9, 1.2), True),
        ((1.0, 1.2), True),
        (None, True),
        ((1.01, 1.2), False),
        ((0.8, 0.9), False),
    ],
)
def test_a_gain_that_the_interval_does_not_show_is_called_no_difference(
    interval: tuple[float, float] | None, doubted: bool
) -> None:
    nothing = RatioEstimate(0.1, None)
    counts = dict.fromkeys(("finished", "failed", "rounds"), 30)
    unknown = (
        "tokens",
        "drafted",
        "submitted",
        "accepted",
        "wasted_tokens",
        "acceptance_length",
        "draft_efficiency",
    )
    unknown += (
        "server_tokens_per_busy_second",
        "acceptance_length_request_mean",
        "acceptance_rate_request_mean",
    )
    unknown += ("acceptance_length_sd", "wdt", "wdt_paper", "wdt_share")
    ratios = dict.fromkeys(
        ("speedup", "against_best_feature", "regret", "gap_closed", "acceptance_gain"), nothing
    )
    decoding = ContenderDecoding(
        kind="classifier",
        **counts,
        **dict.fromkeys(unknown),
        **ratios,
        intervals={},
        makespan_s=1.0,
        throughput=50.0,
        acceptance_rate=0.5,
        against_best_fixed=RatioEstimate(1.1, list(interval) if interval else None),
    )
    leaders = Leaders("mlp", "mlp", "confidence", "threshold", "fixed-k:k=3", "fixed-k:k=8")
    chosen = ContenderSummary("mlp", "classifier", 0.0, 0.0, 4, 50.0)
    sentence = headline(leaders, decoding, chosen, 30)
    assert (": no difference is shown" in sentence) is doubted
    assert "which is `fixed-k:k=4`," in sentence
