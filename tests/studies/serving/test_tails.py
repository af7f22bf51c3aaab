"""The time between tokens with speculation and without it: from which load on the tail is longer."""

from typing import Any

import pytest
from msgspec import structs
from report_builders import serving_figures, serving_run

from specbench_kit.metrics.vocabulary import Percentiles
from specbench_kit.reports.render_markdown import render
from specbench_kit.serving.figures import (
    ClassFigures,
    Interval,
    ResponseLatencies,
    SearchedRow,
    SeedSearch,
    SimulatedRow,
    TriedLoad,
)
from specbench_kit.serving.options import CapacityRule
from specbench_kit.studies.serving.report import serving_report
from specbench_kit.studies.serving.summary import (
    CapacitySummary,
    ServingDescription,
    SimulationSummary,
)
from specbench_kit.studies.serving.tails import tail_sentences, tail_table

POINT: dict[str, Any] = {
    "slo": "4",
    "slo_scale": 1.0,
    "estimator_factor": 1.0,
    "estimator_noise": 0.0,
    "guard_s": 0.0,
}


def run(*labels: str, plain: str = "plain") -> ServingDescription:
    none = {"longest": 0}
    return serving_run(
        *({"label": label, **({"typical": none} if label == plain else {})} for label in labels)
    )


def waited(p99_ms: float) -> Percentiles[Interval]:
    """Percentiles whose last is known to a tenth of it."""
    p99_s = p99_ms / 1e3
    return Percentiles(
        *(Interval(p99_s / part, 0.9 * p99_s / part, 1.1 * p99_s / part) for part in (3, 4, 2, 1))
    )


def row(series: str, devices: int, p99_ms: float | None, **changes: Any) -> SimulatedRow:
    itl_s = None if p99_ms is None else waited(p99_ms)
    figures = serving_figures(Interval(0.0), itl_s=itl_s)
    return SimulatedRow(series=series, devices=devices, figures=figures, **{**POINT, **changes})


def simulation(*rows: SimulatedRow) -> SimulationSummary:
    return SimulationSummary(
        axes={}, rows=list(rows), against_first=[], knees=[], guards=[], ranges=[]
    )


def at_loads(spec: list[float], plain: list[float]) -> SimulationSummary:
    loads = (10, 20, 50)
    return simulation(
        *(row("spec", *at) for at in zip(loads, spec, strict=True)),
        *(row("plain", *at) for at in zip(loads, plain, strict=True)),
    )


@pytest.mark.parametrize(
    ("spec", "plain", "sentence"),
    [
        (
            [50, 100, 300],
            [100, 150, 200],
            "from 50 devices on spec hurts the tail, with 300 ms against 200 ms of plain; "
            "with fewer it is not shown to.",
        ),
        (
            [200, 100, 300],
            [100, 150, 200],
            "from 50 devices on spec hurts the tail, with 300 ms against 200 ms of plain; with some fewer too.",
        ),
        (
            [200, 300, 400],
            [100, 150, 200],
            "spec hurts the tail at every load from 10 devices on, with 200 ms against 100 ms of plain.",
        ),
        (
            [200, 100, 150],
            [100, 150, 200],
            "spec hurts the tail with 10 devices, and is not shown to with 50 devices.",
        ),
        (
            [50, 100, 150],
            [100, 150, 200],
            "up to 50 devices speculation does not make it longer; there spec has 150 ms and plain 200 ms.",
        ),
        # By no more than seeds differ.
        (
            [50, 100, 210],
            [100, 150, 200],
            "up to 50 devices speculation is not shown to make it longer; there spec has 210 ms and plain 200 ms.",
        ),
    ],
)
def test_the_load_is_named_from_which_on_the_tail_is_longer(
    spec: list[float], plain: list[float], sentence: str
) -> None:
    lines = tail_sentences(run("spec", "plain"), at_loads(spec, plain))
    assert lines == [f"The P99 of the time between tokens (ITL): {sentence}"]


def test_each_class_and_each_setting_has_its_sentence() -> None:
    rows = [
        row(series, devices, p99_ms, slo_scale=scale)
        for scale in (1.0, 2.0)
        for series, p99_ms in (("spec", 300.0), ("plain", 100.0))
        for devices in (10, 20)
    ]
    for one in rows[:4]:
        group = ClassFigures(**structs.asdict(one.figures.overall), promised_speed=Interval(4.0))
        one.figures.classes |= {"4/s": group, "8/s": group}
    lines = tail_sentences(run("spec", "plain"), simulation(*rows))
    assert [line.partition(":")[0] for line in lines] == [
        "The P99 of the time between tokens (ITL) at SLO x1",
        "The P99 of the time between tokens (ITL) of class 4 tokens/s at SLO x1",
        "The P99 of the time between tokens (ITL) of class 8 tokens/s at SLO x1",
        "The P99 of the time between tokens (ITL) at SLO x2",
    ]


def test_both_stand_side_by_side_on_the_page() -> None:
    described = run("spec", "plain")
    summary = at_loads([50, 100, 300], [100, 150, 200])
    table = tail_table(described, summary)
    assert table is not None
    assert [list(cells) for cells in table.rows] == [
        ["10", "12.5 / 25.0 / 50.0", "25.0 / 50.0 / 100"],
        ["20", "25.0 / 50.0 / 100", "37.5 / 75.0 / 150"],
        ["50", "75.0 / 150 / 300", "50.0 / 100 / 200"],
    ]
    page = render(serving_report(described, summary, [], []))
    assert "## Time between tokens, with speculation and without (modelled)" in page
    assert "from 50 devices on spec hurts the tail" in page


def searched(
    series: str, *by_seed: dict[float, float], unit: str = "devices", group: str = "all"
) -> SearchedRow:
    """A search for capacity: by seed, the P99 in ms at each load that was tried."""
    seeds = [
        SeedSearch(
            max(tried),
            [
                TriedLoad(
                    load,
                    *(0.0, 0.0, 0.0, 100, 50.0, True, True),
                    latencies={
                        name: latencies_of(p99_ms) for name in dict.fromkeys(("all", group))
                    },
                )
                for load, p99_ms in tried.items()
            ],
            False,
        )
        for tried in by_seed
    ]
    return SearchedRow(
        series=series, devices=None, capacity=Interval(1.0), unit=unit, seeds=seeds, **POINT
    )


def latencies_of(p99_ms: float) -> ResponseLatencies[float]:
    parts = Percentiles(*(p99_ms / 1e3 / part for part in (3, 4, 2, 1)))
    return ResponseLatencies(ttft_s=parts, tpot_s=parts, itl_s=parts, icl_s=parts, response_s=parts)


def capacities(*rows: SearchedRow) -> CapacitySummary:
    return CapacitySummary(rule=CapacityRule(), axes={}, rows=list(rows), guards=[], ranges=[])


def test_a_search_for_capacity_compares_the_loads_that_both_tried_with_every_seed() -> None:
    """Of 64 and 70 devices one side, or one seed, is missing."""
    summary = capacities(
        searched("spec", {16: 50, 32: 300, 64: 900}, {16: 51, 32: 302, 70: 900}),
        searched("plain", {16: 100, 32: 200, 64: 400}, {16: 101, 32: 201, 64: 401}),
    )
    described = run("spec", "plain")
    assert tail_sentences(described, summary) == [
        "The P99 of the time between tokens (ITL): from 32 devices on spec hurts the tail, with 301 ms against "
        "200 ms of plain; with fewer it is not shown to."
    ]
    table = tail_table(described, summary)
    assert table is not None
    assert [list(cells) for cells in table.rows] == [
        ["16", "12.6 / 25.2 / 50.5", "25.1 / 50.2 / 100"],
        ["32", "75.2 / 150 / 301", "50.1 / 100 / 200"],
    ]


def test_a_search_for_a_rate_says_requests_per_second_and_each_class() -> None:
    rates = {"unit": "requests/s", "group": "8/s"}
    summary = capacities(
        searched("spec", {0.16: 300, 0.32: 400}, {0.16: 301, 0.32: 401}, **rates),
        searched("plain", {0.16: 100, 0.32: 200}, {0.16: 101, 0.32: 201}, **rates),
    )
    lines = tail_sentences(run("spec", "plain"), summary)
    begins = "spec hurts the tail at every load from 0.16 requests/s on"
    assert len(lines) == 2
    assert begins in lines[0]
    assert f"of class 8 tokens/s: {begins}" in lines[1]
    page = render(serving_report(run("spec", "plain"), summary, [], []))
    assert "The loads are those that the search tried of both series with every seed." in page
    assert "| requests/s | class |" in page


def test_searches_without_a_common_load_are_not_compared() -> None:
    summary = capacities(searched("spec", {16: 50}), searched("plain", {8: 50}))
    assert tail_table(run("spec", "plain"), summary) is None
    assert tail_sentences(run("spec", "plain"), summary) == []


@pytest.mark.parametrize("labels", [("spec", "other"), ("plain",)])
def test_without_two_sides_nothing_is_said(labels: tuple[str, ...]) -> None:
    summary = simulation(*(row(label, 10, 100) for label in labels))
    assert tail_table(run(*labels), summary) is None
    assert tail_sentences(run(*labels), summary) == []


def test_results_of_earlier_versions_have_no_such_gaps() -> None:
    summary = simulation(row("spec", 10, None), row("plain", 10, None))
    assert tail_sentences(run("spec", "plain"), summary) == []
    page = render(serving_report(run("spec", "plain"), summary, [], []))
    assert "Time between tokens" not in page
