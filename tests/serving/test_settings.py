"""Settings: series, grids and intervals over seeds."""

from typing import Any

import pytest
from msgspec.structs import astuple
from report_builders import serving_figures

from specbench_kit.core.errors import SkitError
from specbench_kit.serving.figures import Interval, SimulatedRow
from specbench_kit.serving.number_lists import parse_devices
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.studies.serving.seeds import estimate, over_seeds
from specbench_kit.studies.serving.settings import ServingSettings
from specbench_kit.studies.serving.simulation_grid import guards, knee

RECORDING = RecordingSettings()


def settings(**changes: Any) -> ServingSettings:
    return ServingSettings(recording=RECORDING, **{"acceptance": ("iid:alpha=0.8",), **changes})


def test_one_entry_counts_for_all_and_several_for_one_each() -> None:
    series_list = settings(
        system=("wisp", "sled"), scheduler=("fcfs",), method=("own", "fixed-k:k=2")
    ).series()
    assert [(series.system, series.scheduler, series.method) for series in series_list] == [
        ("wisp", "fcfs", "wisp"),
        ("sled", "fcfs", "fixed-k:k=2"),
    ]
    assert [series.label for series in series_list] == ["wisp", "sled"]


def test_labels_tell_rows_of_one_system_apart() -> None:
    series_list = settings(system=("wisp",), scheduler=("fcfs", "own")).series()
    assert [series.label for series in series_list] == ["wisp, fcfs", "wisp, wisp-promise"]


def test_the_grid_keeps_guard_times_to_schedulers_that_have_one() -> None:
    chosen = settings(system=("wisp", "sled"), guard_s=(0.05, 0.2), estimator_factor=(1.0, 0.5))
    points = chosen.points()
    assert len(points) == 2 * 2 + 2
    assert {point.scheduler for point in points} == {
        "wisp-promise:guard_s=0.05",
        "wisp-promise:guard_s=0.2",
        "static",
    }


@pytest.mark.parametrize(
    ("text", "devices"),
    [("7", (7,)), ("1,4,2", (1, 4, 2)), ("10:30:10", (10, 20, 30)), ("2:4,8", (2, 3, 4, 8))],
)
def test_numbers_of_devices(text: str, devices: tuple[int, ...]) -> None:
    assert parse_devices(text) == devices


@pytest.mark.parametrize("text", ["", "many", "1:2:3:4", "5:1", "1:5:0", "1.5"])
def test_other_texts_are_no_numbers_of_devices(text: str) -> None:
    with pytest.raises(SkitError, match="--devices takes numbers"):
        parse_devices(text)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"system": ("wisp", "sled", "centralized"), "scheduler": ("fcfs", "edf")},
            "--scheduler is given 2 times",
        ),
        ({"system": ("wisp", "wisp")}, "need as many different labels"),
        ({"devices": (4, 4)}, "devices: a value is given twice"),
        ({"deployment": ("local",)}, "a simulation needs latency models"),
        ({"seeds": 0}, "--seeds must be at least 1"),
        ({"jobs": 0}, "--jobs must be"),
        ({"slo_scale": (0.0,)}, "--slo-scale must be above 0"),
        ({"slo": ("1:0.5",)}, "add up to 1"),
        ({"devices": tuple(range(1, 3000))}, "vary less at once"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], line: str) -> None:
    with pytest.raises(SkitError, match=line):
        settings(**changes).points()


def test_estimates_over_seeds() -> None:
    """Student's t: 12.706205 for two seeds, 4.302653 for three."""
    assert estimate([3.0]) == Interval(3.0)
    assert astuple(estimate([1.0, 3.0])) == pytest.approx((2.0, 2 - 12.706205, 2 + 12.706205))
    three = (2.0, 2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5)
    assert astuple(estimate([1.0, 2.0, 3.0])) == pytest.approx(three)
    assert estimate([0.0, 0.1], 0.0, 1.0).low == 0.0


def test_trees_of_figures_are_joined_number_by_number() -> None:
    first = serving_figures(0, throughput=1, acceptance_length=None)
    second = serving_figures(0, throughput=3, acceptance_length=4.0)
    second.steady.steady = False
    averages = over_seeds([first, second])
    assert averages.overall.throughput.mean == 2
    assert averages.overall.acceptance_length == Interval(4.0)
    assert averages.steady.steady is False


def test_the_knee_is_where_a_flat_line_begins_to_rise() -> None:
    assert knee([(10, 0.0), (20, 0.0), (30, 0.01), (40, 0.5), (50, 0.9)]) == 30
    assert knee([(10, 0.0), (20, 0.01), (30, 0.0)]) is None
    assert knee([(10, 0.0), (20, 0.9)]) is None


def test_the_guard_time_that_makes_up_for_a_wrong_estimator() -> None:
    def row(factor: float, guard_s: float, rate: float) -> SimulatedRow:
        condition = {
            "series": "wisp",
            "devices": 9,
            "slo": "2",
            "slo_scale": 1.0,
            "estimator_noise": 0.0,
        }
        figures = serving_figures(
            Interval(0.0), violation_rate=Interval(rate, rate - 0.01, rate + 0.01)
        )
        return SimulatedRow(**condition, estimator_factor=factor, guard_s=guard_s, figures=figures)

    def late(row: SimulatedRow) -> Interval | None:
        return row.figures.overall.violation_rate

    rows = [row(1, 0.05, 0.1), row(1, 0.2, 0.1), row(0.5, 0.05, 0.4), row(0.5, 0.2, 0.105)]
    (best_guard,) = guards(rows, late, smaller_is_better=True)
    assert (best_guard.estimator_factor, best_guard.guard_s) == (0.5, 0.2)
    (lost,) = guards([*rows[:3], row(0.5, 0.2, 0.3)], late, smaller_is_better=True)
    assert lost.guard_s is None
