"""The report and plots of a training run."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from trace_builders import DRAFT_S, VERIFY_S, made_requests, write_trace

from specbench_kit.core.typed_json import decode
from specbench_kit.predictors.thresholds import DeploymentKey
from specbench_kit.runs.folder import to_json
from specbench_kit.studies.training import wording
from specbench_kit.studies.training.evaluation import TrainingExperiment, train
from specbench_kit.studies.training.examples import split_by_prompt
from specbench_kit.studies.training.offsets import read_offsets
from specbench_kit.studies.training.plots import write_plots
from specbench_kit.studies.training.report import advice, render
from specbench_kit.studies.training.run import summarise
from specbench_kit.studies.training.settings import PredictorTrainingSettings
from specbench_kit.studies.training.timing import Timing
from specbench_kit.studies.training.wording import (
    Choices,
    RatioEstimate,
    RepeatedRatio,
    Repeats,
    TrainingDescription,
    TrainingSummary,
)

pytestmark = pytest.mark.figures

RUN: dict[str, Any] = {
    "dataset": {
        "name": "made",
        "source": "local",
        "location": "made.jsonl",
        "count": 25,
        "total": 25,
    },
    "models": {
        "target": {"name": "big", "hash": "a" * 64},
        "draft": {"name": "small", "hash": "b" * 64},
    },
    "config": {"seed": 0},
    "requests": {"recorded": 25, "failed": 0},
    "time_kind": "modelled",
    "argv": ["skit", "train-predictor"],
}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> TrainingExperiment:
    offsets = read_offsets(
        write_trace(tmp_path_factory.mktemp("trace") / "t.parquet", made_requests(25))
    )
    settings = PredictorTrainingSettings(families=("logistic", "xgboost"), trials=2)
    timing = Timing(DRAFT_S, VERIFY_S, 1e-4, origin="measured by hand")
    far = structs.replace(timing, link_s=(0.1,) * 7)
    split = split_by_prompt(offsets, 0)
    return train(
        settings, split, timing, lambda *_: None, further=[(DeploymentKey("far", "f00"), far)]
    )


@pytest.fixture(scope="module")
def summary(experiment: TrainingExperiment) -> TrainingSummary:
    single_repeat = Repeats(1, *[RepeatedRatio(1.0, None, [1.0])] * 4)
    return decode(TrainingSummary, to_json(summarise(experiment, single_repeat)))


@pytest.fixture(scope="module")
def report(summary: TrainingSummary) -> str:
    return render(TrainingDescription.read(RUN), summary)


def section(report: str, title: str) -> str:
    (text,) = re.findall(
        rf"^## {re.escape(title)}[^\n]*\n(.*?)(?=^## |\Z)", report, re.MULTILINE | re.DOTALL
    )
    return str(text)


def test_every_contender_has_a_row_with_its_numbers(report: str, summary: TrainingSummary) -> None:
    for title in ("Is a predictor worth it?", "What it does to decoding"):
        rows = [line for line in section(report, title).splitlines() if line.startswith("| ")]
        assert len(rows) == 2 + len(summary.decoding)
    worth = section(report, "Is a predictor worth it?")
    for name, metrics in summary.decoding.items():
        (row,) = [
            line
            for line in worth.splitlines()
            if line.startswith(f"| {wording.label(name, metrics.kind)} |")
        ]
        assert f"{100 * metrics.regret.value:.1f}%" in row
    by_speed = sorted(summary.decoding, key=lambda name: -summary.decoding[name].throughput)
    labels = [wording.label(name, summary.decoding[name].kind) for name in by_speed]
    shown = [
        line.split(" | ")[0].removeprefix("| ")
        for line in worth.splitlines()
        if line.startswith("| ")
    ]
    assert shown[2:] == labels


def test_the_published_confusion_stands_beside_ours_with_what_follows_from_it(report: str) -> None:
    text = section(report, "Accepted or rejected?")
    assert "| WISP's MLP, published | – | – | 75.1% | 80.1% | 57.5% | 42.5% | 68.8% | – |" in text
    assert "| WISP's MLP, published | 92 | 68 | 112 | 451 |" in text


def test_tables_are_well_formed(report: str) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", report + "\n", re.MULTILINE)
    assert len(tables) >= 9
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_a_verdict_follows_its_interval(summary: TrainingSummary) -> None:
    def sentence(value: float, interval: list[float] | None) -> str:
        return wording.classifier_adds(
            structs.replace(summary, classifier_over_feature=RatioEstimate(value, interval))
        ).partition("`")[0]

    assert sentence(1.1, [1.02, 1.2]) == "What the classifier adds: speed. "
    assert (
        sentence(1.1, [0.9, 1.2])
        == "What the classifier adds: no speed that these prompts can show. "
    )
    assert sentence(0.9, [0.8, 0.99]) == "What the classifier adds: nothing; it costs speed. "
    assert sentence(0.9, None) == "What the classifier adds: too few prompts to tell. "


def ratio(value: float, *interval: float) -> RatioEstimate:
    return RatioEstimate(value, list(interval) or None)


@pytest.mark.parametrize(
    ("wisp", "confidence", "adds", "start"),
    [
        (
            ratio(1.2, 1.1, 1.3),
            ratio(1.05, 1.01, 1.1),
            ratio(1.1, 1.02, 1.2),
            "Use the predictor, `wisp:predictor=",
        ),
        (
            ratio(1.1, 1.05, 1.2),
            ratio(1.1, 1.04, 1.2),
            ratio(1.0, 0.9, 1.1),
            "Confidence is enough here: use `thresh",
        ),
        (
            ratio(1.1, 1.05, 1.2),
            ratio(1.1, 0.9, 1.2),
            ratio(1.0, 0.9, 1.1),
            "Use the predictor, `wisp:predictor=",
        ),
        (
            ratio(1.1, 0.9, 1.2),
            ratio(1.1, 0.9, 1.2),
            ratio(1.0, 0.9, 1.1),
            "A fixed length is enough here: use `fix",
        ),
        (ratio(1.2), ratio(1.1), ratio(1.1), "Too few prompts to say what to use"),
    ],
)
def test_the_report_begins_with_what_to_do(
    wisp: RepeatedRatio,
    confidence: RepeatedRatio,
    adds: RepeatedRatio,
    start: str,
    summary: TrainingSummary,
) -> None:
    """The simplest of what is not shown to be slower, by the intervals."""
    changed = structs.replace(
        summary, choices=Choices(wisp, confidence, adds, ratio(0.7, 0.6, 0.8))
    )
    assert advice(changed).startswith(start)
    assert (
        f"**{advice(changed)}**" in render(TrainingDescription.read(RUN), changed).split("\n\n")[1]
    )


def test_over_enough_splits_their_intervals_decide(summary: TrainingSummary) -> None:
    three = RepeatedRatio(1.0, [0.9, 1.1], [0.9, 1.0, 1.1])
    changed = structs.replace(summary, repeats=Repeats(3, three, three, three, three))
    assert advice(changed).startswith("A fixed length is enough here")
    assert "| oracle / best fixed length | 1.00x | 0.900–1.10 | 0.900x | 1.10x |" in render(
        TrainingDescription.read(RUN), changed
    )


def test_every_place_has_a_row_with_its_prices(report: str, summary: TrainingSummary) -> None:
    text = section(report, "Thresholds by deployment")
    assert [site.deployment for site in summary.sites] == ["local", "far"]
    (far,) = [line for line in text.splitlines() if line.startswith("| far |")]
    assert far.endswith("| 2.00 ms | 110 ms |")
    assert "Duration of a decision: measured by hand." in text


def test_few_prompts_and_sample_data_are_warned_of(summary: TrainingSummary) -> None:
    sample = {**RUN, "dataset": {**RUN["dataset"], "source": "sample"}}
    text = render(TrainingDescription.read(sample), summary)
    assert "FEW PROMPTS: all results come from 5 prompts" in text
    assert "SAMPLE DATA" in text
    assert "SAMPLE DATA" not in render(TrainingDescription.read(RUN), summary)
    assert "FAILED REQUESTS: 2 did not fit" in render(
        TrainingDescription.read({**RUN, "requests": {"recorded": 23, "failed": 2}}), summary
    )


def test_an_oracle_that_is_no_faster_leaves_no_gap(summary: TrainingSummary) -> None:
    nothing = RatioEstimate(None, None)
    decoding = {
        name: structs.replace(metrics, gap_closed=nothing)
        for name, metrics in summary.decoding.items()
    }
    text = render(TrainingDescription.read(RUN), structs.replace(summary, decoding=decoding))
    assert "there is no gap to close" in text


def test_plots_are_pictures(
    experiment: TrainingExperiment, summary: TrainingSummary, tmp_path: Path, report: str
) -> None:
    write_plots(tmp_path / "plots", summary, experiment.evaluation.judged(), "made")
    written = sorted(path.name for path in (tmp_path / "plots").glob("*.png"))
    assert written == sorted(re.findall(r"\(plots/(\w+\.png)\)", report))
    drawings = {path.stem: path.read_text() for path in (tmp_path / "plots").glob("*.svg")}
    assert sorted(f"{name}.png" for name in drawings) == written
    # A page's policy loads no picture of pixels, wherever it lies.
    assert not any("<image" in drawing for drawing in drawings.values())
    for name in written:
        content = (tmp_path / "plots" / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 10_000
