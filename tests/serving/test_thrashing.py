"""A server whose KV memory holds only a few of its sessions."""

import numpy as np
from scenes import calm, scenario

from specbench_kit.serving.figures import SimulatedRow
from specbench_kit.serving.memory import KvCapacity
from specbench_kit.serving.metrics import compute_metrics
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.studies.serving.seeds import over_seeds
from specbench_kit.studies.serving.summary import SimulationSummary
from specbench_kit.studies.serving.wording import MOST_EVICTIONS, thrashing


def crowd(devices: int, kv_tokens: float = 400) -> Scenario:
    """Return a scene in which responses grow from 100 to 300 tokens: two prompts fit where one response does."""
    memory = KvCapacity(kv_tokens, 4096)
    lengths = {"prompt_tokens": 100, "output_tokens": 200, "duration_s": 20.0}
    return scenario("centralized", devices, deployment=calm(), memory=memory, slo="1", **lengths)


def finished(result: SimulationResult) -> int:
    return int(np.isfinite(result.responses["end_s"]).sum())


def cautions(scene: Scenario, result: SimulationResult) -> list[str]:
    condition = {
        "slo": "1",
        "slo_scale": 1.0,
        "estimator_factor": 1.0,
        "estimator_noise": 0.0,
        "guard_s": None,
    }
    figures = over_seeds([compute_metrics(scene, result)])
    row = SimulatedRow(series="centralized", devices=scene.devices, **condition, figures=figures)
    return thrashing(
        SimulationSummary(axes={}, rows=[row], against_first=[], knees=[], guards=[], ranges=[])
    )


def test_a_server_with_little_memory_thrashes_goes_on_and_says_so() -> None:
    scene = crowd(30)
    result = simulate(scene)
    assert result.evictions > MOST_EVICTIONS * finished(result)
    assert finished(result) >= finished(simulate(crowd(1)))
    (caution,) = cautions(scene, result)
    assert caution.startswith("THRASHING: centralized at 30 devices")


def test_with_room_for_all_nothing_is_evicted_or_said() -> None:
    scene = crowd(30, 30 * 300)
    result = simulate(scene)
    assert result.evictions == 0
    assert not cautions(scene, result)
