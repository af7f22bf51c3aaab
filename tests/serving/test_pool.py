"""Several servers behind a router: what routers choose, what a move costs, and what an outage leaves behind."""

from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nightly import nightly_except
from rich.console import Console
from scenes import DEPLOYMENT, equal_results, scenario

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.deployments.base import Endpoint
from specbench_kit.deployments.fields import find_profile
from specbench_kit.deployments.loading import find
from specbench_kit.profilers.derived_run import shared_profile
from specbench_kit.profilers.devices import find_device
from specbench_kit.profilers.subject import find_subject
from specbench_kit.runs.deployment import HandOver, Link
from specbench_kit.serving.arrays import Floats, Integers
from specbench_kit.serving.arrivals import NextRequests, Poisson, ReplayedArrivals, RequestArrival
from specbench_kit.serving.figures import Interval
from specbench_kit.serving.memory import UNLIMITED_KV, KvCapacity, kv_capacity
from specbench_kit.serving.metrics import compute_metrics
from specbench_kit.serving.options import CapacityRule
from specbench_kit.serving.pool_spec import Outage, PoolServer, parse_outage, parse_servers
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.routers.base import RoutedServer, parse_router, routers
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.waiting import WaitingRound
from specbench_kit.serving.simulation import ServerPool, Simulation, simulate
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.serving_run import ServingRun
from specbench_kit.studies.serving.settings import ServingSettings
from specbench_kit.studies.serving.summary import CapacitySummary, SimulationSummary
from specbench_kit.studies.serving.terminal import print_serving

ALL_ROUTERS = (
    *sorted(routers.all()),
    "round-robin:per_round=true",
    "shortest-expected-time:per_round=true",
)


def finished_once(result: SimulationResult) -> None:
    """Assert that every request ends at most once, in the order of the device, and that no token is lost."""
    responses = result.responses
    for client in np.unique(responses["client"]):
        own = responses["client"] == client
        assert len(np.unique(responses["start_s"][own])) == own.sum()
        assert (np.diff(np.sort(responses["start_s"][own])) > 0).all()
    ended = np.isfinite(responses["end_s"])
    assert (responses["committed"][ended] == responses["tokens"][ended]).all()
    assert responses["committed"].sum() == result.rounds["committed"].sum()


@pytest.mark.parametrize("system", nightly_except(["wisp"], ["wisp", "sled", "centralized"]))
@pytest.mark.parametrize("router", ALL_ROUTERS)
def test_every_request_ends_exactly_once_though_a_server_fails(system: str, router: str) -> None:
    """Requests come at a rate that leaves time to finish all of them before the end."""
    scene = scenario(
        system,
        24,
        servers=2,
        router=router,
        outages=(Outage(0, 6.0, 11.0), Outage(1, 14.0, 17.0), Outage(0, 16.0, 18.0)),
        arrivals=FewRequests(3.0),
        memory=KvCapacity(2500),
        duration_s=200.0,
    )
    result = simulate(scene, 2)
    finished_once(result)
    assert len(result.responses["end_s"]) == 24 * FewRequests.limit
    assert np.isfinite(result.responses["end_s"]).all()
    assert result.pool
    assert (sum(result.pool.lost) > 0) == (scene.system.prefix_cache)
    assert (sum(result.pool.moved) > 0) == ("per_round" in router and scene.system.prefix_cache)


@dataclass(frozen=True, slots=True)
class FewRequests(Poisson):
    """Poisson arrivals of which every device has only a few."""

    limit = 5

    def next_requests(
        self, devices: Integers, count: int, number: Integers, previous_s: Floats, uniform: Floats
    ) -> NextRequests:
        following = Poisson(self.rate_per_s).next_requests(
            devices, count, number, previous_s, uniform
        )
        return following._replace(at_s=np.where(number < self.limit, following.at_s, np.inf))


def test_no_server_verifies_while_it_is_away() -> None:
    """Batches of a failed server end with it, and none begins before it is back."""
    scene = scenario("wisp", 40, servers=2, outages=(Outage(1, 12.0, 20.0),))
    batches = simulate(scene, 1).batches
    away = (batches["server"] == 1) & (batches["ended_s"] > 12.0) & (batches["started_s"] < 20.0)
    assert not away.any()
    for index in (0, 1):
        own = batches["server"] == index
        assert (batches["started_s"][own][1:] >= batches["ended_s"][own][:-1]).all()
    assert ((batches["server"] == 1) & (batches["started_s"] >= 20.0)).any()


def test_an_outage_of_the_only_server_lets_everything_wait() -> None:
    result = simulate(scenario("wisp", 10, outages=(Outage(0, 10.0, 15.0),)), 1)
    verified = result.rounds["started_s"][np.isfinite(result.rounds["started_s"])]
    assert not ((verified >= 10.0) & (verified < 15.0)).any()
    assert (verified >= 15.0).any()
    finished_once(result)


def test_a_session_that_moves_is_computed_from_its_first_token_on() -> None:
    """Round robin over rounds leaves the KV behind every time; over responses it never does."""
    unmoved = simulate(scenario("wisp", 6, servers=2, router="round-robin"), 1)
    moved = simulate(scenario("wisp", 6, servers=2, router="round-robin:per_round=true"), 1)
    for result, leaves in ((unmoved, False), (moved, True)):
        rounds = {
            name: column[result.rounds["batch"] >= 0] for name, column in result.rounds.items()
        }
        servers = result.batches["server"][rounds["batch"].astype(int)]
        order = np.lexsort((rounds["started_s"], rounds["client"]))
        same_response = (np.diff(rounds["client"][order]) == 0) & (
            np.diff(rounds["response"][order]) == 0
        )
        changes = (np.diff(servers[order]) != 0) & same_response
        assert changes.any() == leaves
        later = order[1:][changes]
        assert (rounds["cached"][later] == 0).all()
        assert (rounds["new"][later] > 60).all()
        stays = order[1:][same_response & ~changes]
        assert (rounds["cached"][stays] > 0).all()
        assert result.pool
        # A round that is on the server at the end has moved, and is not verified yet.
        assert 0 <= sum(result.pool.moved) - changes.sum() <= 6


SYSTEMS = ("wisp", "sled", "specedge", "wisp-cache", "centralized")


@pytest.mark.parametrize("system", nightly_except(["wisp", "centralized"], SYSTEMS))
@pytest.mark.parametrize("changes", [{}, {"memory": KvCapacity(1500), "arrivals": Poisson(2.0)}])
def test_a_pool_of_one_server_does_what_a_single_server_does(
    system: str, changes: dict[str, object]
) -> None:
    """The loop of pools takes every arrival by itself, and comes to the same rounds, batches and responses."""
    scene = scenario(system, 30, **changes)
    alone = simulate(scene, 5)
    simulation = Simulation(scene, 5, native=False)
    simulation._pool = ServerPool(scene, simulation._servers, simulation._devices)
    pooled = simulation.run(scene.duration_s)
    del pooled.batches["server"]
    assert equal_results(alone, replace(pooled, events=alone.events, refusals=alone.refusals))


def test_two_servers_serve_what_one_cannot() -> None:
    scenes = [scenario("wisp", 200, servers=servers) for servers in (1, 2)]
    single_server, both_servers = (compute_metrics(scene, simulate(scene, 1)) for scene in scenes)
    assert single_server.pool == {}
    assert both_servers.overall.throughput > 1.5 * single_server.overall.throughput
    assert list(both_servers.pool) == ["1", "2"]
    shares = [server.rounds_share or 0 for server in both_servers.pool.values()]
    assert sum(shares) == pytest.approx(1)
    assert min(shares) > 0.4
    assert both_servers.server.utilisation == pytest.approx(
        sum(server.utilisation for server in both_servers.pool.values()) / 2
    )


def test_an_unequal_pool_gives_the_faster_server_more() -> None:
    """Both get as many responses in turn, and the slow server's take longer; by work the fast one gets more of them."""
    slow = replace(
        DEPLOYMENT, verifier=Endpoint("slow", InteractionModel(1.6e-4, 8e-8, 1.6e-5, 60e-3))
    )
    pool = (
        PoolServer("1 (fast)", DEPLOYMENT, UNLIMITED_KV),
        PoolServer("2 (slow)", slow, UNLIMITED_KV),
    )
    figures_by_router = {}
    for router in ("round-robin", "least-work", "shortest-expected-time"):
        scene = scenario("wisp", 60, servers=pool, router=router)
        figures_by_router[router] = compute_metrics(scene, simulate(scene, 1))
    in_turn = figures_by_router.pop("round-robin")
    for by_work in figures_by_router.values():
        assert by_work.pool["1 (fast)"].rounds_share > 1.1 * in_turn.pool["1 (fast)"].rounds_share  # type: ignore[operator]
        assert by_work.overall.throughput > in_turn.overall.throughput


@dataclass
class StatedServer:
    """A server with stated seconds, as routers see it."""

    index: int
    work: float = 0.0
    own: float = 0.0
    sessions: tuple[int, ...] = ()

    def work_s(self, request: WaitingRound, now_s: float) -> float:
        return self.work

    def round_s(self, request: WaitingRound) -> float:
        return self.own


def choices(spec: str, servers: list[StatedServer], clients: list[int]) -> list[int]:
    route = parse_router(spec).routing()
    up: list[RoutedServer] = list(servers)
    rounds = [WaitingRound(client, 10, 0, 0.0, 1.0, 1.0, 1.0) for client in clients]
    return [servers[route(request, up, 0.0)].index for request in rounds]


def test_what_routers_choose() -> None:
    servers = [StatedServer(0, 0.5, 0.1), StatedServer(1, 0.2, 0.9), StatedServer(2, 0.3, 0.2)]
    assert choices("round-robin", servers, [7] * 5) == [0, 1, 2, 0, 1]
    assert choices("round-robin", [servers[0], servers[2]], [7] * 3) == [0, 2, 0]
    assert choices("least-work", servers, [7]) == [1]
    assert choices("shortest-expected-time", servers, [7]) == [2]
    clients = list(range(300))
    homes = choices("session-affinity", servers, clients)
    assert choices("session-affinity", servers, clients) == homes
    assert min(np.bincount(homes)) > 70
    without = choices("session-affinity", servers[1:], clients)
    assert all(before == after for before, after in zip(homes, without, strict=True) if before)


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("3", 3),
        ("wisp", ["wisp"]),
        ("wisp=2,wan", ["wisp", "wisp", "wan"]),
        (" a.toml , b", ["a.toml", "b"]),
    ],
)
def test_servers_as_options_name_them(text: str, servers: object) -> None:
    assert parse_servers(text) == servers


@pytest.mark.parametrize("text", ["0", "-1", "65", "", "wisp=0", "wisp=x", "wisp,,wan", "wisp=99"])
def test_other_texts_are_no_servers(text: str) -> None:
    with pytest.raises(SkitError, match="--servers takes"):
        parse_servers(text)


@pytest.mark.parametrize(
    "text", ["", "1:2", "0:1:2", "1:5:5", "1:-1:2", "1:1:inf", "x:1:2", "1:1:2:3"]
)
def test_other_texts_are_no_outages(text: str) -> None:
    with pytest.raises(SkitError, match="--outage takes SERVER:FROM:TO"):
        parse_outage(text)


@pytest.mark.parametrize(
    ("outages", "line"),
    [
        ((Outage(2, 1.0, 2.0),), "there is no server 3 of 2"),
        ((Outage(0, 50.0, 60.0),), "fails at 50 s, after the end at 40 s"),
        (
            (Outage(1, 4.0, 8.0), Outage(1, 2.0, 5.0)),
            "server 2 fails at 4 s, before it is back at 5 s",
        ),
    ],
)
def test_outages_that_cannot_be_are_refused(outages: tuple[Outage, ...], line: str) -> None:
    with pytest.raises(SkitError, match=line):
        scenario("wisp", servers=2, outages=outages)


def built(**changes: Any) -> list[Scenario]:
    """Return the scenario of every point of some settings."""
    plain: dict[str, Any] = {
        "acceptance": ("iid:alpha=0.8",),
        "deployment": ("adaspec-7b-a100",),
        "replaced": ("drafter.placement=edge",),
        "prompt_tokens": "60",
        "output_tokens": "40",
        "duration_s": 40.0,
        "warmup_s": 5.0,
    }
    settings = ServingSettings(recording=RecordingSettings(), **{**plain, **changes})
    builder = ScenarioBuilder(settings)
    return [builder.scenario(point) for point in settings.points()]


def test_named_servers_have_their_own_verifiers_and_memory() -> None:
    (scene,) = built(
        servers=("adaspec-7b-a100=2,adaspec-7b-l40",), router=("round-robin",), outage=("3:10:20",)
    )
    first, second, third = scene.pool
    assert [server.name for server in scene.pool] == [
        "1 (adaspec-7b-a100)",
        "2 (adaspec-7b-a100)",
        "3 (adaspec-7b-l40)",
    ]
    assert first.deployment.verifier == second.deployment.verifier != third.deployment.verifier
    assert third.deployment.verifier.device == "NVIDIA L40"
    assert third.deployment.drafter == scene.deployment.drafter
    assert first.memory.tokens < third.memory.tokens
    assert scene.outages == (Outage(2, 10.0, 20.0),)


def test_a_server_of_a_pool_may_be_several_cards() -> None:
    """Eight cards that share a model are one server: one queue, one KV memory, and the power of all of them."""
    (scene,) = built(
        deployment=("adaspec-70b-8xa100",),
        system=("centralized",),
        servers=("adaspec-70b-8xa100=2",),
        slo=("class-1",),
    )
    first, second = scene.pool
    assert first.deployment.verifier == second.deployment.verifier
    assert first.deployment.verifier.power_w == 8 * 400
    assert (
        first.memory.tokens
        == kv_capacity(find_profile(TENSOR_PARALLEL, LIBRARY, "verifier")).tokens
        > 0
    )


def test_cards_of_a_server_share_the_model_by_the_law_of_steps() -> None:
    """Two cards hold more KV than one, and take less time for a step, but more than half of it; power adds up."""
    (scene,) = built(
        deployment=("wisp-roofline",), servers=("1xh100,2xh100,8xa100",), slo=("class-1",)
    )
    single_card, two_cards, eight_cards = scene.pool
    assert [server.name for server in scene.pool] == ["1 (1xh100)", "2 (2xh100)", "3 (8xa100)"]
    alone_s, shared_s = (
        server.deployment.verifier.pass_s(((5, 1000),) * 32) for server in (single_card, two_cards)
    )
    assert alone_s / 2 < shared_s < alone_s
    assert two_cards.memory.tokens > 2 * single_card.memory.tokens > 0
    assert [server.deployment.verifier.power_w for server in scene.pool] == [700, 1400, 3200]
    assert (
        two_cards.deployment.verifier.price_per_hour
        == 2 * single_card.deployment.verifier.price_per_hour
        > 0
    )
    assert eight_cards.deployment.verifier.device == "8 x NVIDIA A100 SXM 80 GB"
    assert single_card.deployment.drafter == scene.deployment.drafter
    profile = shared_profile(
        find_device("h100"), 2, find_subject("qwen3-32b", "target"), dtype="bfloat16"
    )
    assert two_cards.deployment.verifier.latency == profile.latency()
    settings = ServingSettings(
        recording=RecordingSettings(),
        acceptance=("iid:alpha=0.8",),
        deployment=("wisp-roofline",),
        servers=("2xh100,1xh100",),
    )
    memory, origin = ScenarioBuilder(settings).least_memory(settings.series()[0])
    assert (memory, origin) == (
        single_card.memory,
        "on server 2 (1xh100), of all servers the least",
    )


def test_batches_in_a_pipeline_of_cards_by_hand() -> None:
    """Passes of 0.3 s and of 0.6 s through three stages, with 0.05 s between two stages.

    The second batch enters when the first one has left stage 1, at 0.2 s, finds stage 2 busy from 0.25 to 0.45 s, and
    stage 3 from 0.5 to 0.7 s.
    """
    verifier = Endpoint(
        "cards", InteractionModel(0.1, 0, 0, 0), stages=3, hand_over=HandOver(0.05, per_pass=2)
    )
    scene = scenario(
        "centralized",
        devices=2,
        deployment=replace(DEPLOYMENT, verifier=verifier, link=Link()),
        arrivals=ReplayedArrivals((RequestArrival(0.0, 6, 1), RequestArrival(0.1, 3, 1))),
        prompt_tokens=None,
        output_tokens=None,
        slo="1/s",
        require_attainable_slo=False,
    )
    result = simulate(scene)
    assert result.batches["started_s"] == pytest.approx([0.0, 0.2])
    assert result.batches["ended_s"] == pytest.approx([3 * 0.2 + 2 * 0.05, 0.7 + 0.1])
    figures = compute_metrics(
        replace(scene, warmup_s=0.0, duration_s=0.8), replace(result, end_s=0.8)
    )
    assert figures.server.utilisation == pytest.approx((0.7 + 0.6) / 3 / 0.8)
    assert sum(figures.over_time.load) / len(figures.over_time.load) == pytest.approx(
        (0.7 + 0.6) / 3 / 0.8
    )


def test_cards_of_a_server_in_stages_share_its_layers() -> None:
    """Four stages of two H100 take the step of two H100 and three transfers, and hold the KV that eight cards hold."""
    (scene,) = built(
        deployment=("wisp-roofline",), servers=("2xh100,8xh100/pp4,8xh100",), slo=("class-1",)
    )
    two, pipeline, eight = scene.pool
    assert pipeline.name == "2 (8xh100/pp4)"
    verifier = pipeline.deployment.verifier
    assert (verifier.stages, scene.depth(pipeline), scene.depth(two)) == (4, 4, 1)
    assert verifier.device == "4 stages of 2 x NVIDIA H100 SXM 80 GB"
    rows = ((5, 1000),) * 32
    # 160 hidden states of 5120 numbers in 2 bytes, at 450 GB/s, and 10 us, for each of three transfers.
    transfers_s = 3 * (10e-6 + 160 * 5120 * 2 / 450e9)
    assert verifier.pass_s(rows) == pytest.approx(
        two.deployment.verifier.pass_s(rows) + transfers_s
    )
    assert pipeline.memory == eight.memory
    assert verifier.power_w == eight.deployment.verifier.power_w
    assert verifier.price_per_hour == eight.deployment.verifier.price_per_hour
    assert scene.limits(pipeline).requests == scene.limits(two).requests / 4
    assert scene.limits(pipeline).kv_tokens == pipeline.memory.tokens / 4


def test_kv_of_a_pipeline_is_enough_for_all_batches_under_way() -> None:
    """Sessions outgrow the memory, so that some are evicted, but never one of a batch that is under way."""
    verifier = replace(DEPLOYMENT.verifier, stages=3)
    scene = scenario(
        "wisp",
        devices=12,
        deployment=replace(DEPLOYMENT, verifier=verifier),
        memory=KvCapacity(600),
        slo="0.1/s",
    )
    result = simulate(scene)
    assert result.evictions
    assert result.peak_kv_tokens <= 600
    finished_once(result)


TENSOR_PARALLEL = "llama3.3-70b-a100-40-bf16-verifier-tp8-roofline"
LIBRARY = Path(find("adaspec-70b-8xa100").path).parent


def test_the_drafter_of_a_server_that_drafts_is_its_own() -> None:
    (scene,) = built(system=("adaspec",), servers=("adaspec-7b-a100,adaspec-7b-l40",))
    assert [server.deployment.drafter.device for server in scene.pool] == [
        "NVIDIA A100 40 GB",
        "NVIDIA L40",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"servers": ("adaspec-7b-a100,wisp",)},
            "wisp runs qwen3-32b, and adaspec-7b-a100 vicuna-7b",
        ),
        ({"servers": ("2", "3"), "outage": ("3:1:2",)}, "there is no server 3 of 2"),
        ({"servers": ("2",), "router": ("nonsense",)}, "unknown router 'nonsense'"),
        ({"servers": ("2",), "outage": ("3",)}, "--outage takes SERVER:FROM:TO"),
        ({"servers": ("nowhere,wisp",)}, "nowhere"),
        ({"servers": ("2xnothing",)}, "nothing"),
        ({"servers": ("7xh100",)}, "7 cards cannot share 32 heads evenly"),
        ({"servers": ("6xh100/pp4",)}, "6 cards cannot be divided into 4 equal stages"),
        ({"servers": ("6xh100/pp6",)}, "6 stages cannot share 32 layers evenly"),
        ({"servers": ("6xh100/pp2",)}, "3 cards cannot share 32 heads evenly"),
        (
            {"servers": ("2xh100",), "system": ("adaspec",)},
            "nothing says how long drafting takes there",
        ),
        (
            {"servers": ("2xh100",), "deployment": ("specedge-server",)},
            "does not say by a profile which model",
        ),
    ],
)
def test_pools_that_cannot_be_are_refused(changes: dict[str, object], line: str) -> None:
    with pytest.raises(SkitError, match=line):
        built(**changes)


def test_labels_say_what_sets_pools_apart() -> None:
    settings = ServingSettings(
        recording=RecordingSettings(),
        acceptance=("iid:alpha=0.8",),
        servers=("1", "2", "2"),
        router=("least-work", "least-work", "round-robin"),
    )
    assert [series.label for series in settings.series()] == [
        "wisp, 1 server, least-work",
        "wisp, 2 servers, least-work",
        "wisp, 2 servers, round-robin",
    ]


def test_the_report_says_what_every_server_does(tmp_path: Path) -> None:
    options = {"devices": (8,), "duration_s": 12.0, "warmup_s": 2.0, "seeds": 1, "jobs": 1}
    settings = ServingSettings(
        recording=RecordingSettings(),
        acceptance=("iid:alpha=0.8",),
        prompt_tokens="60",
        output_tokens="20",
        servers=("1", "2"),
        outage=("1:4:6",),
        out=tmp_path,
        **options,  # type: ignore[arg-type]
    )
    outcome = ServingRun(settings=settings, report=lambda *_: None).simulate()
    assert isinstance(outcome.result, SimulationSummary)
    alone, pool = (row.figures.pool for row in outcome.result.rows)
    assert list(alone) == ["1"]
    assert alone["1"].rounds_share == Interval(1.0)
    assert pool["1"].away_s.mean == 2
    shares = [server.tokens_share.mean for server in pool.values() if server.tokens_share]
    assert sum(shares) == pytest.approx(1)
    report = (outcome.folder / "report.md").read_text(encoding="utf-8")
    first_table = (
        report.partition("## Servers of the pool (modelled)")[2].strip().partition("\n\n")[0]
    )
    lines = first_table.splitlines()
    assert len(lines) == 2 + 3
    assert "| `wisp, 2 servers` | 8 | 2 |" in lines[-1]
    assert "1:4:6" in report


def test_a_search_says_what_every_server_does_at_the_capacity(tmp_path: Path) -> None:
    settings = ServingSettings(
        recording=RecordingSettings(),
        acceptance=("iid:alpha=0.8",),
        prompt_tokens="60",
        output_tokens="20",
        slo=("class-4",),
        servers=("1", "2"),
        duration_s=30.0,
        warmup_s=2.0,
        seeds=2,
        jobs=1,
        out=tmp_path,
    )
    rule = CapacityRule(epsilon=0.05, most=24, resolution=0.5)
    outcome = ServingRun(settings=settings, report=lambda *_: None).capacity(rule)
    assert isinstance(outcome.result, CapacitySummary)
    alone, pool = outcome.result.rows
    assert alone.pool == {}
    shares = [server.tokens_share.mean for server in pool.pool.values() if server.tokens_share]
    assert len(shares) == 2
    assert sum(shares) == pytest.approx(1)
    report = (outcome.folder / "report.md").read_text(encoding="utf-8")
    lines = report.partition("## Servers of the pool at the capacity (modelled)")[2].partition(
        "##"
    )[0]
    assert [line.split("|")[3].strip() for line in lines.strip().splitlines()[2:4]] == ["1", "2"]
    console = Console(width=80, file=StringIO())
    print_serving(console, outcome.run, outcome.result)
    printed = console.file.getvalue().partition("of all rounds")[2].splitlines()  # type: ignore[attr-defined]
    assert len([line for line in printed if line.lstrip().startswith("wisp, 2 servers")]) == 2
