"""Figures of a simulation at a single load."""

from itertools import pairwise

import pytest
from matplotlib.figure import Figure
from report_builders import serving_figures

from specbench_kit.serving.figures import Interval, ServingPoint, SimulatedRow
from specbench_kit.studies.serving.plots import curves, frame, pictures
from specbench_kit.studies.serving.summary import SimulationSummary, chart

ALONE, TAIL = {"wisp": 0.0, "sled": 0.818}, {"wisp": 0.1, "sled": 0.9}


def test_bars_have_their_numbers_above_the_interval_and_stand_over_their_names() -> None:
    point = {
        "slo": "2",
        "slo_scale": 1.0,
        "estimator_factor": 1.0,
        "estimator_noise": 0.0,
        "guard_s": None,
    }
    drawn = chart([ServingPoint(series=name, devices=20, **point) for name in ALONE])  # type: ignore[arg-type]
    axes = Figure().subplots()
    curves(axes, drawn, lambda row: Interval(ALONE[row.series], 0.0, 0.9), 100)
    frame(axes, drawn, "late (%)", top=103)
    assert [(text.get_text(), text.xy) for text in axes.texts] == [
        ("0", (0, 90)),
        ("81.8", (1, 90)),
    ]
    centres = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
    assert centres == list(axes.get_xticks())

    beside = Figure().subplots()
    curves(
        beside,
        drawn,
        lambda row: Interval(ALONE[row.series]),
        100,
        lambda row: Interval(TAIL[row.series]),
    )
    edges = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in beside.patches)
    assert all(left[1] <= right[0] for left, right in pairwise(edges))


@pytest.mark.parametrize(
    ("rate", "high", "is_first", "top"),
    [
        (0.0, 0.001, False, 10.0),
        (0.005, 0.16, False, 20.0),
        (0.2, 0.24, True, 30.0),
        (0.6, 0.9, True, 103.0),
    ],
)
def test_broken_promises_come_first_where_there_are_some_and_fill_their_figure(
    rate: float, high: float, is_first: bool, top: float
) -> None:
    point = {
        "slo": "2",
        "slo_scale": 1.0,
        "estimator_factor": 1.0,
        "estimator_noise": 0.0,
        "guard_s": None,
    }
    figures = serving_figures(Interval(0.0), violation_rate=Interval(rate, 0.0, high))
    rows = [
        SimulatedRow(series="a", devices=devices, figures=figures, **point) for devices in (20, 60)
    ]  # type: ignore[arg-type]
    summary = SimulationSummary(
        axes={}, rows=rows, against_first=[], knees=[], guards=[], ranges=[]
    )
    drawn = {picture.name: picture for picture in pictures(summary)}
    assert list(drawn)[:2] == (
        ["violations", "throughput"] if is_first else ["throughput", "violations"]
    )
    axes = Figure().subplots()
    drawn["violations"].draw(axes)
    assert axes.get_ylim() == pytest.approx((0, top))
