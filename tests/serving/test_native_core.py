"""The compiled event loop against the loop in Python: the same numbers, to the last digit, over random scenes."""

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from nightly import nightly_except
from report_builders import make_record, make_round
from scenes import DEPLOYMENT, equal_results, scenario

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import InteractionModel, RoundedModel
from specbench_kit.deployments.base import Endpoint
from specbench_kit.methods.spec import parse_method
from specbench_kit.runs.deployment import HandOver
from specbench_kit.serving import native_core
from specbench_kit.serving.arrivals import ClosedLoop, Poisson, ReplayedArrivals, RequestArrival
from specbench_kit.serving.drafter_costs import DrafterCosts
from specbench_kit.serving.fleet import DeviceKind
from specbench_kit.serving.lengths import LogNormalLengths
from specbench_kit.serving.memory import KvCapacity
from specbench_kit.serving.network import Network
from specbench_kit.serving.pool_spec import Outage, PoolServer
from specbench_kit.serving.round_sources import (
    PositionRates,
    RatesByPlace,
    RecordedRounds,
    StopRuleRates,
    iid,
)
from specbench_kit.serving.routers.least_work import LeastWork
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.estimator import EstimatorError
from specbench_kit.serving.schedulers.fcfs import Fcfs
from specbench_kit.serving.simulation import Simulation, simulate
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.settings import ServingSettings

SCENES = 60
SCHEDULERS = (
    "wisp-promise",
    "wisp-promise:guard_s=0.3,amortise=0,reserve=1,most_reserve_s=2,grace_s=0,foreseen=1",
    "fcfs",
    "edf",
    "edf:by=promise",
    "wisp-paper:by=promise,late_lane=true,guard_s=0.25",
    "static:size=5,timeout_s=0.04",
    "static:groups=3",
    "prefill-first:prompt_tokens=150",
    "wisp-paper",
    "wisp-paper:late_lane=true,amortise=2",
)
ROUNDED = RoundedModel(
    1e-5, 1e-8, 1e-6, 4e-3, 1e-7, 2e-3, wide_s=1e-3, host_s=3e-3, host_request_s=1e-4, overlap=0.5
)
"""A latency model that is no sum over the requests of a batch."""
WINDOWED = replace(ROUNDED, windowed_pair_s=3e-8, windowed_kv_s=4e-7, window=64.0, state_s=1e-4)
"""That of a model with windows and states: most contexts are longer than the window, prompts are not."""

pytestmark = pytest.mark.skipif(
    native_core.load_core() is None, reason="the event loop was not compiled"
)


def random_scenario(seed: int) -> Scenario:
    """Return a scene in which the server is idle, busy or far behind, with any of the parts that the core knows."""
    random = np.random.default_rng([7, seed])

    def one_of(*values: Any) -> Any:
        return values[random.integers(len(values))]

    devices = int(one_of(1, 3, 12, 40, 90))
    costs = DrafterCosts(learned=one_of(False, True))
    stated = tuple(random.uniform(0.2, 1, random.integers(1, 7)))
    rates = PositionRates(stated, one_of(None, StopRuleRates(0.9, 0.6)), costs=costs)
    worse = PositionRates(tuple(0.4 * rate for rate in stated), rates.stop_rule, costs=costs)
    places = RatesByPlace((0, 12, 75), (rates, worse, rates), one_of("context", "output"))
    source = one_of(rates, places, recorded(random))
    requests = tuple(
        RequestArrival(float(at_s), int(random.integers(1, 300)), int(random.integers(1, 60)))
        for at_s in np.cumsum(random.exponential(20 / devices, 60))
    )
    link = replace(DEPLOYMENT.link, jitter_s=one_of(0.0, 0.004, 0.05))
    deployment = replace(DEPLOYMENT, link=link, predictor_s=one_of(None, 3e-4))
    if random.random() < 0.3:
        deployment = replace(
            deployment, verifier=Endpoint("server", (ROUNDED, WINDOWED)[seed // 6 % 2])
        )
    if (stages := int(one_of(1, 1, 2, 4))) > 1:
        transfer = HandOver(
            latency_s=2e-4, bytes_per_token=8e3, bytes_per_s=1e9, per_pass=stages - 1
        )
        deployment = replace(
            deployment, verifier=replace(deployment.verifier, stages=stages, hand_over=transfer)
        )
    slow = replace(deployment, drafter=Endpoint("slow", InteractionModel(2e-4, 1e-8, 1e-7, 3e-2)))
    fleet = (
        DeviceKind("one", 0.6, deployment, source),
        DeviceKind("other", 0.4, slow, iid(0.5, 3)),
    )
    longest = int(one_of(1200, 3000)) * stages  # batches under way share it
    return scenario(
        one_of("wisp", "wisp", "wisp-drafting", "specedge", "sled", "centralized", "adaspec"),
        devices,
        deployment=deployment,
        source=source,
        fleet=one_of((), (), fleet),
        scheduler=SCHEDULERS[seed % len(SCHEDULERS)],
        arrivals=one_of(
            ClosedLoop(),
            ClosedLoop(0.4, exponential=True, leave=0.2, away_s=3.0),
            Poisson(devices * random.uniform(0.02, 0.5)),
            ReplayedArrivals(requests),
        ),
        prompt_tokens=one_of(60, LogNormalLengths(90.0, 0.6)),
        output_tokens=one_of(40, LogNormalLengths(30.0, 0.6)),
        memory=one_of(KvCapacity(), KvCapacity(longest), KvCapacity(longest, lru=True)),
        estimator=EstimatorError(*one_of((1.0, 0.0), (1.3, 0.0))),
        network=one_of(Network(), Network(turn_s=0.01, turn_answer_s=0.001, answer_s=1e-4)),
        verify_cv=one_of(0.0, 0.3),
        max_batch=int(one_of(1, 4, 32)),
        longest_draft=one_of(None, 2),
        require_attainable_slo=False,
    )


def recorded(random: np.random.Generator) -> RecordedRounds:
    """Return a few recorded requests; devices draft on while their rounds are verified, or do not."""
    records = []
    for length in (1, 4, 9):
        rounds = [
            make_round(drafted, accepted=drafted // 2)
            for drafted in random.integers(1, 6, length).tolist()
        ]
        records.append(make_record(str(length), *rounds, prompt_ids=[1] * 30, output_ids=[2] * 25))
    return RecordedRounds(records, proactive=int(random.integers(0, 3)))


@pytest.mark.parametrize("seed", nightly_except(range(0, SCENES, 6), range(SCENES)))
def test_the_compiled_loop_gives_the_same_numbers(seed: int) -> None:
    scene = random_scenario(seed)
    assert Simulation(scene, seed)._core is not None
    compiled, plain = simulate(scene, seed), simulate(scene, seed, native=False)
    assert len(plain.rounds["client"]) > 5
    assert equal_results(compiled, plain)
    assert compiled.pool == plain.pool


@pytest.mark.parametrize("seed", nightly_except(range(0, SCENES, 6), range(SCENES)))
def test_prompts_in_pieces_give_the_same_numbers(seed: int) -> None:
    """Pieces of a few tokens, of less than a prompt, and steps in which whole prompts fit."""
    tokens = (7, 64, 2048)[seed // 6 % 3]
    scene = replace(random_scenario(seed), scheduler=f"chunked:tokens={tokens}")
    assert Simulation(scene, seed)._core is not None
    compiled, plain = simulate(scene, seed), simulate(scene, seed, native=False)
    assert len(plain.batches["started_s"]) > 5
    assert equal_results(compiled, plain)
    assert compiled.pool == plain.pool


ROUTERS = (
    "least-work",
    "least-work:per_round=true",
    "shortest-expected-time",
    "shortest-expected-time:per_round=true",
    "round-robin",
    "round-robin:per_round=true",
    "session-affinity",
)


def random_pool(seed: int) -> Scenario:
    """Return a random scene with equal or unequal servers, some of which are away for a while."""
    random = np.random.default_rng([8, seed])
    scene = random_scenario(seed)
    count = int(random.integers(1, 5))
    fast = replace(
        scene.deployment,
        verifier=Endpoint("fast", InteractionModel(1e-5, 5e-9, 1e-6, 6e-3)),
    )
    unequal = tuple(
        PoolServer(str(number), (scene.deployment, fast)[number % 2], scene.memory)
        for number in range(count)
    )
    outages = []
    for server in range(count):
        from_s = 0.0
        for _ in range(random.integers(0, 3)):
            from_s += float(random.uniform(0.5, 15))
            to_s = from_s + float(random.uniform(0.2, 8))
            outages.append(Outage(server, from_s, to_s))
            from_s = to_s
    return replace(
        scene,
        servers=(count, unequal)[random.integers(2)],
        router=ROUTERS[seed % len(ROUTERS)],
        outages=tuple(outage for outage in outages if outage.from_s < scene.duration_s),
    )


@pytest.mark.parametrize("seed", nightly_except(range(0, SCENES, 6), range(SCENES)))
def test_pools_give_the_same_numbers(seed: int) -> None:
    scene = random_pool(seed)
    assert Simulation(scene, seed)._core is not None
    compiled, plain = simulate(scene, seed), simulate(scene, seed, native=False)
    assert equal_results(compiled, plain)
    assert compiled.pool == plain.pool
    assert set(compiled.batches) == set(plain.batches)


def test_what_was_told_of_a_server_stays_when_it_fails_later() -> None:
    """A batch that is cut short changes its row, but not in a result that was handed out before."""
    undisturbed = replace(scenario("wisp", 20), servers=2)
    batches = simulate(undisturbed).batches
    (number, *_) = ((batches["server"] == 0) & (batches["started_s"] > 10)).nonzero()[0]
    began_s, would_end_s = batches["started_s"][number], batches["ended_s"][number]
    fails_s = float(began_s + would_end_s) / 2
    scene = replace(undisturbed, outages=(Outage(0, fails_s, fails_s + 5),))
    whole = simulate(scene)
    assert whole.batches["ended_s"][number] == fails_s
    simulation = Simulation(scene, 0)
    before = simulation.run(float(began_s + fails_s) / 2)
    told = {name: column.copy() for name, column in before.batches.items()}
    assert told["ended_s"][number] == would_end_s
    assert equal_results(simulation.run(scene.duration_s), whole)
    assert all(np.array_equal(before.batches[name], column) for name, column in told.items())


@pytest.mark.parametrize("system", ["wisp", "sled", "centralized", "adaspec"])
def test_a_compiled_run_that_is_looked_at_goes_on(system: str) -> None:
    """A result stays as it was returned, though rows were added to it that the run does not know."""
    scene = scenario(system, 30, memory=KvCapacity(1500), arrivals=Poisson(2.0))
    compiled, plain = Simulation(scene, 4), Simulation(scene, 4, native=False)
    ends = (0.5, 7.3, 7.302, 7.305, 7.31, 12.0, 12.0, 40.0)
    results = [(compiled.run(end_s), plain.run(end_s)) for end_s in ends]
    assert all(equal_results(result, later_result) for result, later_result in results)


def test_memory_is_used_again_only_when_no_result_looks_into_it() -> None:
    scenes = [scenario("wisp", devices=devices) for devices in (20, 12, 16)]
    expected = [simulate(scene, native=False) for scene in scenes]
    first_result = simulate(scenes[0])
    part = first_result.rounds["sent_s"][3:9]
    assert equal_results(simulate(scenes[1]), expected[1])
    assert equal_results(first_result, expected[0])
    rounds = native_core._spare[0]
    first_result = simulate(
        scenes[2]
    )  # its own memory, since a part of the first result is still held
    assert equal_results(first_result, expected[2])
    assert np.array_equal(part, expected[0].rounds["sent_s"][3:9])
    spare = native_core._spare[0]
    assert spare is not None
    assert spare is not rounds
    address = spare.ctypes.data
    del spare, first_result, rounds
    again = simulate(scenes[1])
    assert again.rounds["client"].ctypes.data == address
    assert equal_results(again, expected[1])


def test_a_response_that_is_too_long_is_the_same_error() -> None:
    requests = (RequestArrival(1.0, 50, 20), RequestArrival(2.0, 4000, 20))
    scene = scenario("wisp", 2, arrivals=ReplayedArrivals(requests), memory=KvCapacity(900))
    errors = []
    for native in (True, False):
        with pytest.raises(SkitError, match="a response of 4000") as raised:
            simulate(scene, native=native)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


def test_a_simulation_leaves_nothing_behind() -> None:
    """The collector cannot see what the core holds, so that no circle may lead through it."""
    simulation = Simulation(scenario("wisp", 6), 1)
    simulation.run(5.0)
    core = weakref.ref(simulation._core)
    del simulation
    assert core() is None


@pytest.mark.parametrize("method", ["fixed-k:k=3", "wisp", "suffix", "threshold"])
@pytest.mark.parametrize(
    ("scheduler", "kv_tokens"),
    [("fcfs", None), ("wisp-promise", 6000), ("chunked:tokens=90", 6000)],
)
def test_a_server_that_drafts_from_a_trace(
    method: str, scheduler: str, kv_tokens: int | None
) -> None:
    """Forwards of one model side by side, prompts one after another, decisions of a predictor, and KV that runs out."""
    settings = ServingSettings(
        system=("adaspec",),
        scheduler=(scheduler,),
        method=(method,),
        acceptance=("qwen2.5-coder",),
        deployment=("vllm-rtx4090",),
        devices=(40,),
        max_batch=16,
        duration_s=15.0,
        warmup_s=0.0,
        recording=RecordingSettings(),
    )
    (point,) = settings.points()
    scene = ScenarioBuilder(settings).scenario(point)
    if kv_tokens is not None:
        scene = replace(scene, memory=KvCapacity(kv_tokens))
    assert Simulation(scene, 0)._core is not None
    compiled = simulate(scene)
    assert equal_results(compiled, simulate(scene, native=False))
    assert len(compiled.rounds["client"]) > 500


class OwnFcfs(Fcfs):
    """A scheduler of somebody else's, which only its own code knows."""


class OwnLeastWork(LeastWork):
    """A router of somebody else's, which only its own code knows."""


UNKNOWN = {
    "a policy that drafts for a whole batch": {"batch_method": parse_method("fixed-k:k=2")},
    "a scheduler that looks ahead": {"scheduler": "knapsack"},
    "noise of the estimator": {"estimator": EstimatorError(1.0, 0.2)},
    "a link that loses messages": {
        "deployment": replace(DEPLOYMENT, link=replace(DEPLOYMENT.link, loss=0.1))
    },
    "a shared link": {"network": Network(shared_up_bytes_per_s=4000.0)},
}


@pytest.mark.parametrize("changes", UNKNOWN.values(), ids=UNKNOWN)
def test_what_the_core_does_not_know_runs_in_python(changes: dict[str, object]) -> None:
    system = "adaspec" if "batch_method" in changes else "wisp"
    assert Simulation(scenario(system, 6, **changes), 1)._core is None


def test_a_scheduler_of_ones_own_runs_in_python() -> None:
    scene = scenario("wisp", 6)
    object.__setattr__(scene, "make_scheduler", OwnFcfs)
    assert Simulation(scene, 1)._core is None


def test_a_router_of_ones_own_runs_in_python() -> None:
    scene = scenario("wisp", 6, servers=2)
    assert Simulation(scene, 1)._core is not None
    object.__setattr__(scene, "make_router", OwnLeastWork)
    assert Simulation(scene, 1)._core is None


def test_without_a_compiler_the_loop_in_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scenario("wisp", 6)
    compiled = simulate(scene)
    monkeypatch.setattr(native_core, "load_core", lambda: None)
    assert Simulation(scene, 0)._core is None
    assert equal_results(simulate(scene), compiled)


@pytest.mark.parametrize("number", ["interface", "settings_size"])
def test_a_core_of_another_version_is_not_used(
    number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = native_core.import_module("specbench_kit.serving.csrc.core")
    assert native_core.load_core.__wrapped__() is core
    monkeypatch.setattr(core, number, 8)
    assert native_core.load_core.__wrapped__() is None
