"""Open loads, whose requests need as many devices as they need, and closed ones, which say how many are in flight."""

from dataclasses import replace

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.loading import find
from specbench_kit.serving.arrivals import RequestArrival, from_zero
from specbench_kit.serving.figures import SimulatedRow
from specbench_kit.serving.metrics import compute_metrics, device_wait_share
from specbench_kit.serving.round_sources import iid
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.systems.base import systems
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.seeds import over_seeds
from specbench_kit.studies.serving.settings import ServingSettings
from specbench_kit.studies.serving.summary import SimulationSummary
from specbench_kit.studies.serving.wording import waiting


@pytest.mark.parametrize(
    "text", ["poisson:rate_per_s=3", "waves:rate_per_s=3", "levels:rate_per_s=3,cv=0.5"]
)
def test_an_open_load_has_as_many_devices_as_it_needs(text: str) -> None:
    """Next to no request waits for its device then; with few devices they do, and the report says for how long."""
    settings = ServingSettings(
        recording=RecordingSettings(),
        acceptance=("iid:alpha=0.8,length=4",),
        arrivals=text,
        prompt_tokens="50",
        output_tokens="20",
        duration_s=60.0,
        warmup_s=5.0,
    )
    waits = {}
    for devices in (settings.loads, (2,)):
        chosen = replace(settings, devices=devices)
        (point,) = chosen.points()
        scenario = ScenarioBuilder(chosen).scenario(point)
        figures = over_seeds([compute_metrics(scenario, simulate(scenario, seed=1))])
        assert figures.device_wait_share is not None
        row = SimulatedRow(series="wisp", **point.coordinates(), figures=figures)
        summary = SimulationSummary(
            axes={}, rows=[row], against_first=[], knees=[], guards=[], ranges=[]
        )
        waits[devices] = figures.device_wait_share.mean, waiting(summary)
    assert waits[settings.loads][0] < 0.01
    assert waits[settings.loads][1] == []
    assert waits[2,][0] > 0.5
    (caution,) = waits[2,][1]
    assert caution.startswith("TOO FEW DEVICES: wisp at 2 devices: requests spend ")


def test_recorded_arrivals_have_a_device_each_and_a_closed_loop_has_those_in_flight() -> None:
    trace = from_zero([RequestArrival(at_s, 5, 6) for at_s in (0.0, 1.0, 1.0, 40.0)])
    assert trace.devices_for(30.0) == 3
    assert trace.devices_for(300.0) == 4
    recording = RecordingSettings()
    assert ServingSettings(recording=recording).loads == (16,)
    assert ServingSettings(recording=recording, concurrency=(3, 9)).loads == (3, 9)
    with pytest.raises(
        SkitError, match="--concurrency cannot go with --arrivals poisson:rate_per_s=1"
    ):
        ServingSettings(recording=recording, concurrency=(3,), arrivals="poisson:rate_per_s=1")
    with pytest.raises(SkitError, match="give --devices"):
        _ = ServingSettings(recording=recording, arrivals="poisson:rate_per_s=1e6").loads


def test_the_time_that_requests_wait_for_their_device_is_theirs() -> None:
    """Two requests of one device, 1 s apart: the first takes some seconds, and the second waits for all but one."""
    scenario = Scenario(
        find("wisp").build(),
        systems.get("sled"),
        iid(0.8, 4),
        1,
        arrivals=from_zero([RequestArrival(0.0, 50, 20), RequestArrival(1.0, 50, 20)]),
        duration_s=60.0,
        warmup_s=0.0,
    )
    result = simulate(scenario, seed=0)
    first_s, second_s = result.responses["end_s"]
    assert first_s > 1
    assert device_wait_share(result) == pytest.approx((first_s - 1) / (first_s + second_s - 1))
