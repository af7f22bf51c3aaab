"""Devices of several kinds on one server."""

from dataclasses import replace

import numpy as np
import pytest
from scenes import DEPLOYMENT, scenario

from specbench_kit.deployments.base import Link
from specbench_kit.errors import SkitError
from specbench_kit.serving.acceptance import iid
from specbench_kit.serving.fleet import Fleet, Kind, parse_fleet
from specbench_kit.serving.memory import KvCapacity, Residents
from specbench_kit.serving.metrics import figures
from specbench_kit.serving.simulation import simulate

SOURCE = iid(0.7, 4)
FAR = replace(
    DEPLOYMENT,
    link=Link(rtt_s=0.5),
    drafter=replace(DEPLOYMENT.drafter, price_per_hour=2.0),
)
MIXED = (Kind("near", 0.25, DEPLOYMENT, SOURCE), Kind("far", 0.75, FAR, iid(0.2, 2)))


def test_two_kinds_that_are_the_same_are_one() -> None:
    halves = tuple(Kind(name, 0.5, DEPLOYMENT, SOURCE) for name in ("a", "b"))
    one, two = (simulate(scenario("specedge", 8, fleet=fleet, duration_s=10.0)) for fleet in ((), halves))
    assert one.same_as(two)


def test_every_class_has_its_share_of_every_kind() -> None:
    kinds = Fleet(MIXED, 400).kind
    near = [int((kinds[start : start + 100] == 0).sum()) for start in range(0, 400, 100)]
    assert all(count in (24, 25, 26) for count in near)


def test_a_kind_has_its_own_odds_link_and_price() -> None:
    scene = scenario(devices=12, fleet=MIXED, slo="1")
    result = simulate(scene)
    found, far = figures(scene, result), Fleet(MIXED, 12).kind == 1
    rounds = result.rounds
    of_far = far[rounds["client"].astype(int)]
    assert rounds["submitted"][of_far].max() == 2
    assert rounds["submitted"][~of_far].max() == 4
    gone = np.isfinite(rounds["answered_s"])
    chosen = of_far & gone
    assert (rounds["answered_s"][chosen] - rounds["ended_s"][chosen]).min() == pytest.approx(0.25)
    parts = [found["kinds"][name]["throughput"] for name in ("near", "far")]
    assert sum(parts) == pytest.approx(found["overall"]["throughput"])
    assert found["cost"]["rented_price"] == pytest.approx(far.sum() * 2.0 * 35 / 3600)


def test_the_least_recently_used_makes_room_where_that_is_asked_for() -> None:
    """Room for two sessions of 40: the newest goes, or with lru the one that came later and was used before."""
    gone = []
    for lru in (False, True):
        residents = Residents(100, 3, lru=lru)
        for client in (0, 1, 0) if not lru else (1, 0, 1):
            residents.pin(np.array([client]), np.array([40]), ())
        gone.append(residents.pin(np.array([2]), np.array([60]), ()))
    assert gone == [[1], [0]]


def test_with_lru_nobody_waits_to_be_let_in() -> None:
    """Six sessions of up to 104 tokens in 250: two are let in and the others wait, or all take turns and come cold."""
    keeps, turns = (
        simulate(scenario("wisp-cache", 6, memory=KvCapacity(250, lru=lru), duration_s=15.0)) for lru in (False, True)
    )
    assert turns.evictions > keeps.evictions
    assert turns.peak_kv_tokens <= 250
    begun = [len(set(one.rounds["client"][one.rounds["batch"] >= 0])) for one in (keeps, turns)]
    assert begun[1] == 6


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("wisp", "--fleet takes deployments with their shares"),
        ("wisp=0.5;raspberry-pi=0.6", "must be above 0 and add up to 1"),
        ("wisp=-1;raspberry-pi=2", "must be above 0 and add up to 1"),
    ],
)
def test_a_fleet_that_is_none_is_one_line(text: str, line: str) -> None:
    assert parse_fleet("a=0.5; b=0.5@iid:alpha=0.6") == [("a", 0.5, None), ("b", 0.5, "iid:alpha=0.6")]
    with pytest.raises(SkitError, match=line):
        parse_fleet(text)
