"""`skit load --baseline`: the same loads with speculation off, and from which of them on drafts hurt the tail."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import read_object
from live_server import serving
from load_inputs import MODELS, PROFILE, PROMPTS, request
from msgspec import UNSET, to_builtins
from report_builders import deployment_description, serving_figures
from trace_builders import write_trace

from specbench_kit.core.errors import SkitError
from specbench_kit.metrics.vocabulary import DistributionValues, Percentiles
from specbench_kit.reports.render_markdown import render
from specbench_kit.runs.document import ServerReference
from specbench_kit.serving.figures import Interval
from specbench_kit.studies.load import run
from specbench_kit.studies.load.report import (
    AnswerShares,
    LoadConfig,
    LoadDescription,
    LoadSummary,
    MeasuredLoad,
    ServedLoad,
    load_cautions,
    load_report,
    tail_sentences,
)
from specbench_kit.studies.load.settings import LoadSettings

DESCRIPTION = LoadDescription(
    config=LoadConfig(
        method="fixed-k",
        scheduler="fcfs",
        slo=["4"],
        max_batch=8,
        duration_s=60.0,
        warmup_s=10.0,
        seed=0,
        baseline=True,
    ),
    server=ServerReference("skit", "fcfs", "cpu"),
    deployment=deployment_description(),
)


def side(devices: int, rate: float | None, p99_ms: float, late_s: float = 0.0) -> dict[str, Any]:
    """The fields of a load whose P99 between tokens is known to a tenth of it."""
    p99_s = p99_ms / 1e3
    itl_s = Percentiles(p99_s / 3, p99_s / 4, p99_s / 2, p99_s)
    return {
        "devices": devices,
        "rate": rate,
        "round_s": DistributionValues(0.1, 0.1, 0.1, 0.1),
        "figures": serving_figures(0.0, itl_s=itl_s, throughput=10.0),
        "slower": 1.0,
        "estimate": 1.0,
        "scatter": 0.0,
        "late_s": (0.0, late_s),
        "answers": AnswerShares(1, 1, 0.0, 0.0, 0.0, 0),
        "itl_p99": {"all": Interval(p99_s, 0.9 * p99_s, 1.1 * p99_s)},
    }


def loads(*points: tuple[int, float | None, float, float]) -> LoadSummary:
    """Loads by devices, rate and the P99 with drafts and without."""
    rows = [
        MeasuredLoad(
            **side(devices, rate, spec_ms), plain=ServedLoad(**side(devices, rate, plain_ms))
        )
        for devices, rate, spec_ms, plain_ms in points
    ]
    return LoadSummary(rows, [])


def test_the_number_of_devices_is_named_from_which_on_the_tail_is_longer() -> None:
    # In whatever order they were measured.
    summary = loads((20, None, 300, 200), (5, None, 50, 100), (10, None, 100, 150))
    sentence = (
        "The P99 of the time between tokens (ITL): from 20 devices on `fixed-k` hurts the tail, with 300 ms against "
        "200 ms of plain decoding; with fewer it is not shown to."
    )
    assert tail_sentences(DESCRIPTION, summary) == [sentence]
    page = render(load_report(DESCRIPTION, summary))
    assert page.index(sentence) < page.index("## Time between tokens with speculation and without")
    assert "| 20 devices | 75.0 ms | 150 ms | 300 ms (270 ms–330 ms) | 10.0 |" in page


def test_a_tail_that_drafts_do_not_lengthen_is_told_up_to_the_largest_load() -> None:
    assert tail_sentences(DESCRIPTION, loads((5, None, 50, 100), (10, None, 100, 150))) == [
        "The P99 of the time between tokens (ITL): up to 10 devices speculation does not make it longer; there "
        "`fixed-k` has 100 ms and plain decoding 150 ms."
    ]


def test_rates_have_a_sentence_for_each_number_of_devices() -> None:
    points = [(devices, rate, 100 * rate, 150.0) for devices in (4, 8) for rate in (2.0, 1.0)]
    assert tail_sentences(DESCRIPTION, loads(*points)) == [
        f"The P99 of the time between tokens (ITL) with {devices} devices: from 2 requests/s on `fixed-k` hurts the "
        "tail, with 200 ms against 150 ms of plain decoding; with lower rates it is not shown to."
        for devices in (4, 8)
    ]


def test_both_sides_have_their_cautions() -> None:
    row = MeasuredLoad(**side(5, None, 50), plain=ServedLoad(**side(5, None, 50, late_s=1.0)))
    assert load_cautions(DESCRIPTION, [row]) == [
        "LATE DRAFTS at 5 devices with speculation off: the machine that generates the load was too slow."
    ]


def test_loads_without_a_baseline_are_written_as_before() -> None:
    row = MeasuredLoad(**{**side(5, None, 50), "itl_p99": UNSET})
    assert not {"plain", "itl_p99"} & to_builtins(row).keys()
    summary = LoadSummary([row], [])
    assert tail_sentences(DESCRIPTION, summary) == []
    assert "## Time between tokens (measured)" in render(load_report(DESCRIPTION, summary))


@pytest.fixture
def settings(tmp_path: Path) -> LoadSettings:
    trace = write_trace(
        tmp_path / "trace.parquet", [request(*prompt) for prompt in PROMPTS], MODELS
    )
    (tmp_path / "profile.toml").write_text(PROFILE)
    return LoadSettings(
        server="127.0.0.1:1",
        trace=trace.path,
        method="fixed-k:k=2",
        devices=(1, 3),
        slo="4:0.5,7.5:0.5",
        duration_s=0.6,
        warmup_s=0.2,
        draft_s=0.001,
        profile=str(tmp_path / "profile.toml"),
        out=tmp_path / "out",
        baseline=True,
        events=True,
    )


@pytest.mark.slow
def test_a_server_is_put_under_each_load_with_speculation_off_too(settings: LoadSettings) -> None:
    with serving() as (_, address):
        outcome = run.load(replace(settings, server=address), lambda *_: None)
    for row in outcome.result.rows:
        assert isinstance(row.plain, ServedLoad)
        assert row.figures.overall.acceptance_length > 1
        assert row.plain.figures.overall.acceptance_length == 1
        assert (row.plain.devices, row.plain.answers.differing) == (row.devices, 0)
        for load in row.sides:
            assert load.itl_p99["all"].mean == pytest.approx(load.figures.overall.itl_s.p99)
    both = outcome.result.rows[-1]
    assert set(both.itl_p99) == {"all", "4/s", "7.5/s"} == set(both.plain.itl_p99)
    summary = read_object(outcome.folder / "summary.json")
    assert summary["rows"][0]["plain"]["answers"]["rounds"] > 0
    assert read_object(outcome.folder / "run.json")["config"]["baseline"] is True
    names = {path.name for path in (outcome.folder / "events").glob("*rounds*")}
    assert len(names) == 4
    assert sum("baseline" in name for name in names) == 2
    page = (outcome.folder / "report.md").read_text()
    assert page.count("The P99 of the time between tokens (ITL)") == 3


@pytest.mark.slow
def test_a_method_that_drafts_nothing_has_no_baseline(settings: LoadSettings) -> None:
    with serving() as (_, address), pytest.raises(SkitError, match="--baseline has no effect"):
        run.load(replace(settings, server=address, method="autoregressive"), lambda *_: None)
    assert not settings.out.exists()
