"""The simulator against a naive one over random scenes, and against what queueing theory knows in closed form."""

from dataclasses import replace

import numpy as np
import pytest
from naive_simulator import Latency, Scene, Simulator
from nightly import nightly_except

from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.runs.deployment import HandOver, Link
from specbench_kit.serving.arrivals import ClosedLoop, Poisson, ReplayedArrivals, RequestArrival
from specbench_kit.serving.metrics import compute_metrics
from specbench_kit.serving.network import Network
from specbench_kit.serving.round_sources import PositionRates
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import ServingSystem

END_S = 1e5
SINGLE = 80
"""Scenes with one server; those with later seeds have two or three, and give them responses in turn."""
POOLS = 40
PIPELINES = 40
SCENES = SINGLE + POOLS + PIPELINES
"""Scenes behind those of pools, with one or two servers that are pipelines of two to five stages."""
SCHEDULERS = ("fcfs", "edf", "edf:by=promise", "static")


def random_scene(seed: int) -> Scene:
    """Return a scene in which the server is now idle, now far behind."""
    random = np.random.default_rng([52, seed])

    def latency(c_s: float) -> Latency:
        return (
            random.uniform(1e-5, 1e-3),
            random.uniform(0, 1e-7),
            random.uniform(0, 1e-5),
            c_s * random.uniform(1, 5),
        )

    draft = int(random.integers(1, 6))
    count = int(random.integers(5, 60))
    arrivals_s = np.cumsum(random.exponential(random.choice([0.05, 0.3, 2.0]), count))
    on_edge = bool(random.random() < 0.75)
    return Scene(
        devices=int(random.integers(1, 13)),
        requests=[
            (float(at_s), int(random.integers(1, 400)), int(random.integers(1, 40)))
            for at_s in arrivals_s
        ],
        drafter=latency(0.004),
        verifier=latency(0.02),
        rtt_s=random.uniform(0.001, 0.2),
        up_bytes_per_s=10 ** random.uniform(3, 6),
        down_bytes_per_s=10 ** random.uniform(3, 6),
        draft=draft,
        accepted=int(random.integers(0, draft + 1)),
        scheduler=SCHEDULERS[seed % len(SCHEDULERS)],
        size=int(random.integers(1, 6)),
        timeout_s=random.uniform(0.0, 0.3),
        largest=int(random.integers(1, 9)),
        prefix_cache=bool(random.random() < 0.7),
        on_edge=on_edge,
        speed=random.uniform(0.5, 4.0),
        turn_s=random.uniform(0.001, 0.05) if random.random() < 0.4 else 0.0,
        shared_bytes_per_s=10 ** random.uniform(2.5, 5) if random.random() < 0.4 else float("inf"),
        servers=int(random.integers(2, 4))
        if SINGLE <= seed < SINGLE + POOLS
        else 1 + seed % 2 * (seed >= SINGLE),
        stages=int(random.integers(2, 6)) if seed >= SINGLE + POOLS else 1,
        hand_over_s=random.choice([0.0, 0.003, 0.02]) if seed >= SINGLE + POOLS else 0.0,
    )


def kit_scenario(scene: Scene) -> Scenario:
    """Return the same scene as the kit has it."""
    scheduler = scene.scheduler
    if scheduler == "static":
        scheduler = f"static:size={scene.size},timeout_s={scene.timeout_s!r}"
    rates = (1.0,) * scene.accepted + (0.0,) * (scene.draft - scene.accepted)
    link = Link(
        scene.rtt_s, up_bytes_per_s=scene.up_bytes_per_s, down_bytes_per_s=scene.down_bytes_per_s
    )
    drafter, verifier = (
        Endpoint(name, InteractionModel(*getattr(scene, name))) for name in ("drafter", "verifier")
    )
    hand_over = HandOver(scene.hand_over_s, per_pass=scene.stages - 1)
    pipeline = (
        replace(verifier, stages=scene.stages, hand_over=hand_over)
        if scene.stages > 1
        else verifier
    )
    return Scenario(
        Deployment("random", drafter, pipeline, link),
        ServingSystem(
            "", "fixed-k", "fcfs", "edge" if scene.on_edge else "none", scene.prefix_cache
        ),
        PositionRates(rates),
        scene.devices,
        slo=parse_slo(f"{scene.speed!r}/s"),
        arrivals=ReplayedArrivals(tuple(RequestArrival(*request) for request in scene.requests)),
        scheduler=scheduler,
        max_batch=scene.largest,
        duration_s=END_S,
        warmup_s=0.0,
        network=Network(turn_s=scene.turn_s, shared_up_bytes_per_s=scene.shared_bytes_per_s),
        require_attainable_slo=False,
        servers=scene.servers,
        router="round-robin",
    )


@pytest.mark.parametrize("seed", nightly_except(range(0, SCENES, 2), range(SCENES)))
def test_random_scenes_go_as_a_naive_simulator_says(seed: int) -> None:
    """Every batch holds the same devices at the same moments, and every response begins and ends when it should."""
    scene = random_scene(seed)
    naive = Simulator(scene)
    naive.run()
    result = simulate(kit_scenario(scene))
    starts_s, ends_s, devices, servers = zip(*naive.batches, strict=True)
    if scene.servers > 1 or scene.stages > 1:
        assert result.batches["server"].tolist() == list(servers)
    assert result.batches["size"].tolist() == [len(chosen) for chosen in devices]
    assert result.batches["started_s"] == pytest.approx(np.array(starts_s), rel=1e-9, abs=1e-9)
    assert result.batches["ended_s"] == pytest.approx(np.array(ends_s), rel=1e-9, abs=1e-9)
    served = [
        sorted(result.rounds["client"][result.rounds["batch"] == number])
        for number in range(len(devices))
    ]
    assert served == [sorted(chosen) for chosen in devices]
    columns = [result.responses[name] for name in ("client", "start_s", "first_s", "end_s")]
    simulated = sorted(zip(*(column.tolist() for column in columns), strict=True))
    assert len(simulated) == len(scene.requests) == len(naive.responses)
    for ours, theirs in zip(simulated, sorted(naive.responses), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-9)
    assert result.responses["committed"].sum() == sum(output for *_, output in scene.requests)


def test_random_scenes_cover_what_they_should() -> None:
    """Schedulers, places to draft, caches, gaps and shared links all occur, and so do idle and crowded servers."""
    scenes = [random_scene(seed) for seed in range(SINGLE)]
    pools = [random_scene(seed) for seed in range(SINGLE, SINGLE + POOLS)]
    assert {scene.scheduler for scene in scenes} == set(SCHEDULERS)
    for name in ("on_edge", "prefix_cache"):
        assert {getattr(scene, name) for scene in scenes} == {True, False}
    assert 10 < sum(scene.turn_s > 0 for scene in scenes) < 70
    assert 10 < sum(scene.shared_bytes_per_s < 1e6 for scene in scenes) < 70
    assert {scene.accepted == scene.draft for scene in scenes} == {True, False}
    assert {scene.servers for scene in scenes} == {1}
    assert {scene.servers for scene in pools} == {2, 3}
    assert {scene.scheduler for scene in pools} == set(SCHEDULERS)
    pipelines = [random_scene(seed) for seed in range(SINGLE + POOLS, SINGLE + POOLS + PIPELINES)]
    assert {scene.stages for scene in pipelines} == {2, 3, 4, 5}
    assert {scene.servers for scene in pipelines} == {1, 2}
    assert {scene.scheduler for scene in pipelines} == set(SCHEDULERS)
    assert {scene.hand_over_s for scene in pipelines} == {0.0, 0.003, 0.02}


ONE_ROUND = Deployment(
    "queue",
    Endpoint("device", InteractionModel(0, 0, 0, 0)),
    Endpoint("server", InteractionModel(0, 0, 0, 0.1)),
)
PLAIN = ServingSystem("", "autoregressive", "fcfs", "none")


@pytest.mark.parametrize("stages", [1, 4])
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_a_server_of_single_rounds_is_the_queue_with_equal_service_times(
    load: float, stages: int
) -> None:
    """M/D/1: customers wait for load / (2 - 2 load) service times on average (Pollaczek and Khinchine).

    Equal rounds wait nowhere but in front of the first stage of a pipeline, which serves each of them in the time of
    one stage.
    """
    verifier = Endpoint("server", InteractionModel(0, 0, 0, 0.1 * stages), stages=stages)
    scenario = Scenario(
        replace(ONE_ROUND, verifier=verifier),
        PLAIN,
        PositionRates((0.5,)),
        256,
        arrivals=Poisson(load / 0.1),
        prompt_tokens=1,
        output_tokens=1,
        max_batch=1,
        slo=parse_slo("1/s"),
        duration_s=1000.0,
        warmup_s=50.0,
    )
    figures = compute_metrics(scenario, simulate(scenario, 1))
    assert figures.server.utilisation == pytest.approx(load, rel=0.04)
    assert figures.overall.throughput == pytest.approx(load / 0.1, rel=0.04)
    queue_s = figures.overall.queue_s
    assert queue_s
    assert queue_s.mean == pytest.approx(0.1 * load / (2 - 2 * load), rel=0.15)
    verify_s = figures.overall.verify_s
    assert verify_s
    assert verify_s.mean == pytest.approx(0.1 * stages)


@pytest.mark.parametrize(
    ("think_s", "leave", "away_s"), [(0.0, 0.0, 0.0), (2.0, 0.0, 0.0), (1.0, 0.25, 6.0)]
)
@pytest.mark.parametrize(("system", "stages"), [("edge", 1), ("none", 1), ("edge", 3)])
def test_devices_are_throughput_times_the_length_of_their_cycle(
    think_s: float, leave: float, away_s: float, system: str, stages: int
) -> None:
    """Little's law: devices = responses a second x (seconds of a response + pause); and busy = batches x their time."""
    scenario = Scenario(
        Deployment(
            "loop",
            Endpoint("device", InteractionModel(1e-4, 1e-8, 1e-7, 9e-3)),
            Endpoint("server", InteractionModel(4e-5, 2e-8, 4e-6, 15e-3), stages=stages),
            Link(rtt_s=0.02),
        ),
        ServingSystem("", "fixed-k", "fcfs", system),  # type: ignore[arg-type]
        PositionRates((0.7, 0.6, 0.5)),
        24,
        arrivals=ClosedLoop(think_s, exponential=True, leave=leave, away_s=away_s),
        prompt_tokens=60,
        output_tokens=30,
        max_batch=4,
        slo=parse_slo("1/s"),
        duration_s=200.0,
        warmup_s=20.0,
    )
    result = simulate(scenario, 4)
    figures = compute_metrics(scenario, result)
    response_s = figures.overall.response_s
    assert response_s
    responses_per_s = figures.overall.throughput / 30
    pause_s = (1 - leave) * think_s + leave * away_s
    assert responses_per_s * (response_s.mean + pause_s) == pytest.approx(24, rel=0.03)
    counted = result.batches["started_s"] >= 20
    batch_s = (result.batches["ended_s"] - result.batches["started_s"])[counted]
    assert figures.server.utilisation == pytest.approx(batch_s.sum() / stages / 180, abs=0.002)


def single_rounds(requests: list[tuple[float, int]], servers: int, router: str) -> Scenario:
    """Return single rounds at stated times, each with a service time of as many milliseconds as it has tokens."""
    return Scenario(
        Deployment(
            "queue",
            Endpoint("device", InteractionModel(0, 0, 0, 0)),
            Endpoint("server", InteractionModel(1e-3, 0, 0, 0)),
        ),
        PLAIN,
        PositionRates((0.5,)),
        len(requests),
        arrivals=ReplayedArrivals(
            tuple(RequestArrival(at_s, tokens, 1) for at_s, tokens in requests)
        ),
        max_batch=1,
        slo=parse_slo("1/s"),
        duration_s=END_S,
        warmup_s=0.0,
        require_attainable_slo=False,
        servers=servers,
        router=router,
    )


def drawn_requests(load: float, servers: int, count: int, seed: int) -> list[tuple[float, int]]:
    """Return Poisson arrivals whose service times are exponential with a mean of 0.1 s, in whole milliseconds."""
    random = np.random.default_rng([7, seed])
    at_s = np.cumsum(random.exponential(0.1 / load / servers, count))
    tokens = np.ceil(random.exponential(100, count)).astype(int)
    return list(zip(at_s.tolist(), tokens.tolist(), strict=True))


def waits_s(scenario: Scenario) -> list[float]:
    """Return the waiting times in the order of arrival, with one device per request."""
    rounds = simulate(scenario).rounds
    order = np.argsort(rounds["client"])
    waits: list[float] = (rounds["started_s"] - rounds["arrived_s"])[order].tolist()
    return waits


@pytest.mark.parametrize("servers", [2, 3])
def test_the_least_work_is_one_line_for_all_servers(servers: int) -> None:
    """Whoever joins the least work starts when it would at the head of one line: Kiefer and Wolfowitz's recursion."""
    requests = drawn_requests(0.8, servers, 2000, servers)
    free_s = [0.0] * servers
    expected_s = []
    for at_s, tokens in requests:
        earliest = free_s.index(min(free_s))
        start_s = max(at_s, free_s[earliest])
        free_s[earliest] = start_s + tokens * 1e-3
        expected_s.append(start_s - at_s)
    assert waits_s(single_rounds(requests, servers, "least-work")) == pytest.approx(
        expected_s, rel=1e-9, abs=1e-9
    )


@pytest.mark.nightly  # the scenes above go batch by batch as a second simulator says
def test_requests_wait_as_long_as_erlang_says_or_longer_in_turn() -> None:
    """M/M/2 over five seeds: Erlang's C for the least work; each server in turn is worse, beyond what seeds scatter."""
    load = 0.7
    by_router = {
        router: np.array(
            [
                np.mean(waits_s(single_rounds(drawn_requests(load, 2, 3000, seed), 2, router)))
                for seed in range(5)
            ]
        )
        for router in ("least-work", "round-robin")
    }
    all_busy = 2 * load**2 / (1 + load)
    assert by_router["least-work"].mean() == pytest.approx(
        all_busy * 0.1 / (2 * (1 - load)), rel=0.1
    )
    lost_s = by_router["round-robin"] - by_router["least-work"]
    assert lost_s.min() > 0
    assert lost_s.mean() > 2.8 * lost_s.std(ddof=1) / 5**0.5


def test_servers_that_are_chosen_by_a_hash_are_queues_of_their_own() -> None:
    """A Poisson stream that is split at random is one Poisson stream per server: twice M/D/1."""
    load = 0.6
    random = np.random.default_rng(3)
    requests = [(float(at_s), 100) for at_s in np.cumsum(random.exponential(0.05 / load, 12000))]
    mean_s = np.mean(waits_s(single_rounds(requests, 2, "session-affinity")))
    assert mean_s == pytest.approx(0.1 * load / (2 - 2 * load), rel=0.1)
