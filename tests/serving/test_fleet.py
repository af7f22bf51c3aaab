"""Devices of several kinds on one server."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scenes import DEPLOYMENT, equal_results, scenario

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.loading import find
from specbench_kit.runs.deployment import Link
from specbench_kit.serving.fleet import DeviceKind, Fleet, parse_fleet
from specbench_kit.serving.memory import KvCapacity, KvMemory
from specbench_kit.serving.metrics import compute_metrics
from specbench_kit.serving.round_sources import iid
from specbench_kit.serving.simulation import simulate

SOURCE = iid(0.7, 4)
FAR = replace(
    DEPLOYMENT,
    link=Link(rtt_s=0.5),
    drafter=replace(DEPLOYMENT.drafter, price_per_hour=2.0),
)
MIXED = (DeviceKind("near", 0.25, DEPLOYMENT, SOURCE), DeviceKind("far", 0.75, FAR, iid(0.2, 2)))


def test_two_kinds_that_are_the_same_are_one() -> None:
    halves = tuple(DeviceKind(name, 0.5, DEPLOYMENT, SOURCE) for name in ("a", "b"))
    uniform, halved = (
        simulate(scenario("specedge", 8, fleet=fleet, duration_s=10.0)) for fleet in ((), halves)
    )
    assert equal_results(uniform, halved)


def test_every_class_has_its_share_of_every_kind() -> None:
    kinds = Fleet(MIXED, 400).kind
    near = [int((kinds[start : start + 100] == 0).sum()) for start in range(0, 400, 100)]
    assert all(count in (24, 25, 26) for count in near)


def test_a_kind_has_its_own_odds_link_and_price() -> None:
    scene = scenario(devices=12, fleet=MIXED, slo="1")
    result = simulate(scene)
    figures, far = compute_metrics(scene, result), Fleet(MIXED, 12).kind == 1
    rounds = result.rounds
    of_far = far[rounds["client"].astype(int)]
    assert rounds["submitted"][of_far].max() == 2
    assert rounds["submitted"][~of_far].max() == 4
    answered = np.isfinite(rounds["answered_s"])
    chosen = of_far & answered
    assert (rounds["answered_s"][chosen] - rounds["ended_s"][chosen]).min() == pytest.approx(0.25)
    parts = [figures.kinds[name].throughput for name in ("near", "far")]
    assert sum(parts) == pytest.approx(figures.overall.throughput)
    assert figures.cost.rented_price == pytest.approx(far.sum() * 2.0 * 35 / 3600)


def test_devices_cost_nothing_where_the_server_drafts() -> None:
    dear = replace(DEPLOYMENT, drafter=replace(DEPLOYMENT.drafter, price_per_hour=2.0))
    scene = scenario("server", 4, deployment=dear)
    cost = compute_metrics(scene, simulate(scene)).cost
    assert (cost.rented_price, cost.edge_busy_s) == (0, 0)


def test_the_least_recently_used_makes_room_where_that_is_asked_for() -> None:
    """Two sessions of 40 fit: the newest is evicted, or with lru the least recently used."""
    evicted = []
    for lru in (False, True):
        residents = KvMemory(100, 3, lru=lru)
        for client in (0, 1, 0) if not lru else (1, 0, 1):
            residents.pin(np.array([client]), np.array([40]), ())
        evicted.append(residents.pin(np.array([2]), np.array([60]), ()))
    assert evicted == [[1], [0]]


def test_with_lru_nobody_waits_to_be_let_in() -> None:
    """Two of six sessions of up to 104 tokens are admitted to 250 and the others wait; with lru all take turns."""
    keeps, turns = (
        simulate(scenario("wisp-cache", 6, memory=KvCapacity(250, lru=lru), duration_s=15.0))
        for lru in (False, True)
    )
    assert turns.evictions > keeps.evictions
    assert turns.peak_kv_tokens <= 250
    begun = [
        len(set(result.rounds["client"][result.rounds["batch"] >= 0])) for result in (keeps, turns)
    ]
    assert begun[1] == 6


def test_what_goes_up_beside_a_token_takes_its_time_on_the_link() -> None:
    """Two drafted tokens with 300 bytes each besides the id take 6 ms more at 100,000 bytes a second."""
    plain, heavy = (
        replace(DEPLOYMENT, link=replace(DEPLOYMENT.link, jitter_s=0.0, draft_bytes=size))
        for size in (0.0, 300.0)
    )
    up_s = []
    for deployment in (plain, heavy):
        scene = scenario("wisp-cache", 1, deployment=deployment, source=iid(0.5, 2), duration_s=8.0)
        rounds = simulate(scene).rounds
        up_s.append((rounds["arrived_s"] - rounds["sent_s"])[rounds["submitted"] == 2][1])
    assert up_s[1] - up_s[0] == pytest.approx(0.006)


def test_a_lost_message_is_sent_again_as_often_as_chance_says() -> None:
    """With a loss of a quarter a message loses a third of a copy on average; without loss nothing changes."""
    lossy = replace(DEPLOYMENT, link=replace(DEPLOYMENT.link, loss=0.25, retry_s=0.3))
    kinds = (DeviceKind("lossy", 0.5, lossy, SOURCE), DeviceKind("sure", 0.5, DEPLOYMENT, SOURCE))
    fleet, chance = Fleet(kinds, 4000), np.random.default_rng(0).random(4000)
    lost_s = fleet.retransmission_s(np.arange(4000), chance)
    assert not lost_s[fleet.kind == 1].any()
    assert lost_s[fleet.kind == 0].mean() == pytest.approx(0.3 / 3, rel=0.1)
    slow, sure = (
        simulate(scenario(devices=4, deployment=deployment, duration_s=15.0))
        for deployment in (lossy, DEPLOYMENT)
    )
    assert slow.rounds["committed"].sum() < sure.rounds["committed"].sum()


def test_energy_is_that_of_what_works() -> None:
    """The server takes 100 W while it verifies, a device 10 W while it drafts; unknown power gives no energy."""
    powered = replace(
        DEPLOYMENT,
        verifier=replace(DEPLOYMENT.verifier, power_w=100.0),
        drafter=replace(DEPLOYMENT.drafter, power_w=10.0),
    )
    scene = scenario(devices=3, deployment=powered, duration_s=12.0)
    figures = compute_metrics(scene, simulate(scene))
    busy_s = figures.server.utilisation * 7.0
    cost = figures.cost
    assert cost.energy_j == pytest.approx(100 * busy_s + 10 * cost.edge_busy_s)
    assert cost.joules_per_device_hour == pytest.approx(10 * cost.edge_busy_s / 3 * 3600 / 7.0)
    assert cost.server_joules_per_token
    assert cost.device_joules_per_token
    assert cost.joules_per_token == pytest.approx(
        cost.server_joules_per_token + cost.device_joules_per_token
    )
    bare = scenario(devices=3, duration_s=12.0)
    assert compute_metrics(bare, simulate(bare)).cost.energy_j is None


def test_energy_that_is_known_does_not_wait_for_the_other() -> None:
    """A server's card states its power, the devices' does not; where devices do not draft, they spend nothing."""
    powered = replace(DEPLOYMENT, verifier=replace(DEPLOYMENT.verifier, power_w=100.0))
    costs = {}
    for system in ("wisp", "centralized"):
        scene = scenario(system, devices=3, deployment=powered, duration_s=12.0)
        costs[system] = compute_metrics(scene, simulate(scene)).cost
    assert costs["wisp"].device_joules_per_token is costs["wisp"].joules_per_device_hour is None
    assert costs["wisp"].server_joules_per_token > 0
    assert costs["wisp"].joules_per_token is None
    assert (
        costs["centralized"].device_joules_per_token
        == costs["centralized"].joules_per_device_hour
        == 0
    )
    assert costs["centralized"].joules_per_token == costs["centralized"].server_joules_per_token


@pytest.mark.parametrize(
    ("link", "found"),
    [
        ({"payload": "ids"}, 0.0),
        ({"payload": "topk", "top": 20}, 160.0),
        ({"payload": "full", "vocabulary": 151936}, 303872.0),
        ({"payload": "hidden", "state_bytes": 8192}, 8192.0),
        ({"payload": "full"}, "the payload 'full' needs vocabulary"),
        ({"payload": "all"}, 'payload must be "full" or "hidden" or "ids" or "topk", not "all"'),
        ({"loss": 0.1}, "loss needs retry_s, the time until a lost message is sent again"),
    ],
)
def test_a_payload_is_named_and_a_loss_is_noticed(link: dict[str, Any], found: float | str) -> None:
    filled_queue = find("wan").replace({f"link.{name}": value for name, value in link.items()})
    if isinstance(found, str):
        with pytest.raises(SkitError, match=found):
            filled_queue.build()
    else:
        assert filled_queue.build().link.draft_bytes == found


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("wisp", "--fleet takes deployments with their shares"),
        ("wisp=0.5;raspberry-pi=0.6", "must be above 0 and add up to 1"),
        ("wisp=-1;raspberry-pi=2", "must be above 0 and add up to 1"),
    ],
)
def test_a_fleet_that_is_none_is_one_line(text: str, line: str) -> None:
    assert parse_fleet("a=0.5; b=0.5@iid:alpha=0.6") == [
        ("a", 0.5, None),
        ("b", 0.5, "iid:alpha=0.6"),
    ]
    with pytest.raises(SkitError, match=line):
        parse_fleet(text)
