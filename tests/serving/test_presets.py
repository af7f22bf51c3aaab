"""Published experiments: what they state, and how their numbers compare to the paper's."""

from dataclasses import replace

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.papers.comparison import compare_published
from specbench_kit.papers.experiment import Published
from specbench_kit.papers.figure_row import FigureRow
from specbench_kit.reports.document import Estimate
from specbench_kit.serving.figures import AXES, Interval
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.studies.serving.presets import presets
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.settings import ServingSettings
from specbench_kit.studies.serving.wording import estimate

RECORDING = RecordingSettings()
NAMES = sorted(presets.all())
CAPACITY = {"epsilon", "resolution"}
REPAIRED = "algorithm 1, late lane"
"""The series that ratios of ratios are taken to."""


def settings(name: str) -> ServingSettings:
    options = {
        key: value for key, value in presets.get(name).options.items() if key not in CAPACITY
    }
    return ServingSettings(recording=RECORDING, **options)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_can_be_simulated_as_it_stands(name: str) -> None:
    """No model is needed, since every acceptance is stated."""
    chosen = settings(name)
    assert not chosen.records
    builder = ScenarioBuilder(chosen)
    for point in chosen.points():
        assert builder.scenario(point).devices == point.devices


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_says_where_each_assumption_would_lead(name: str) -> None:
    preset = presets.get(name)
    assert preset.assumed
    assert all(
        assumption.value and assumption.effect.endswith(".") for assumption in preset.assumed
    )
    assert len({assumption.name for assumption in preset.assumed}) == len(preset.assumed)


@pytest.mark.parametrize("name", NAMES)
def test_published_numbers_have_a_place_in_the_grid(name: str) -> None:
    preset, chosen = presets.get(name), settings(name)
    assert preset.published
    labels = [series.label for series in chosen.series()]
    for published in preset.published:
        assert published.series in labels
        for axis, value in published.where.items():
            assert axis in AXES
            assert value in getattr(chosen, axis)
    assert preset.against in ("", *labels)


def test_capacities_of_table_2() -> None:
    capacities = {
        (published.series, published.where["slo"]): published.value
        for published in presets.get("wisp-table-2").published
    }
    assert {capacities[name, "class-1"] for name in ("algorithm 1, late lane", "wisp-promise")} == {
        164
    }
    assert capacities["sled", "class-4"] == 21
    assert len(capacities) == 24


def test_ratios_of_ratios_are_over_the_reference_series() -> None:
    preset = presets.get("wisp-table-2")
    rows = [
        FigureRow(series, {"slo": "class-1"}, {"capacity": {"mean": mean}})
        for series, mean in ((REPAIRED, 300.0), ("sled", 100.0))
    ]
    pairs = {(pair.series, pair.where["slo"]): pair for pair in compare_published(preset, rows)}
    ratios = pairs["sled", "class-1"].ratio_of_ratios
    assert ratios is not None
    assert ratios.published == 164 / 83
    assert ratios.simulated == 3
    assert ratios.ratio == pytest.approx(3 / (164 / 83))
    assert pairs[REPAIRED, "class-1"].ratio_of_ratios is None
    assert pairs[REPAIRED, "class-1"].simulated_over_published == 300 / 164
    assert pairs["centralized", "class-1"].simulated is None


def test_a_number_that_is_not_at_hand_has_no_ratio() -> None:
    unknown = Published("wisp", "figures.violations.queue_dominant", None, {"devices": 120})
    preset = replace(presets.get("wisp-figure-8"), published=(unknown,))
    figures = {"figures": {"violations": {"queue_dominant": {"mean": 2.0}}}}
    row = FigureRow("wisp", {"devices": 120}, figures)
    pair = compare_published(preset, [row])[-1]
    assert pair.simulated == Interval(2.0)
    assert pair.simulated_over_published is None


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(SkitError, match=r"unknown preset 'wisp-table-22'.*wisp-table-2"):
        presets.get("wisp-table-22")


def test_a_figure_derived_from_others_is_told_without_an_interval() -> None:
    """The share of missed deadlines that `wisp-figure-8` prints is such a figure."""
    assert estimate(Interval(0.25)) == Estimate(0.25, None)
