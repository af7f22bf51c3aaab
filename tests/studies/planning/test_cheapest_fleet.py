"""The cheapest fleet against brute force over its own candidates, for 1 to 10,000 devices and several promises."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import ceil

import pytest
from nightly import nightly_except

from specbench_kit.serving.parallel import Workers
from specbench_kit.serving.scenario import Scenario
from specbench_kit.studies.planning.candidates import Candidate, Market, Placement
from specbench_kit.studies.planning.options import PlanOptions, parse_classes
from specbench_kit.studies.planning.run import PLACEMENTS
from specbench_kit.studies.planning.search import (
    LOADS,
    LOADS_JUDGED,
    Found,
    LoadJudgement,
    Ranked,
    ReplicaFleet,
    Search,
    Trials,
    cheapest,
    most_devices,
    rank,
)

DEVICES = (1, 3, 20, 36, 41, 60, 90, 200, 500, 2500, 10000)
PROMISES = ("4:0.5,8:0.5", "8", "16")
"""From the laxest to the strictest."""
HELD: dict[tuple[object, ...], bool] = {}
"""Whether a load is served, of every load that was simulated: the same ones serve all numbers of devices."""


def options(promise: str, devices: int, **others: object) -> PlanOptions:
    usual: dict[str, object] = {
        "devices": devices,
        "classes": parse_classes(promise),
        "link": 0.04,
        "gpus": ("l40s", "h100"),
        "cards": (1,),
        "bits": (8, 4),
        "methods": ("fixed-k",),
        "schedulers": ("fcfs",),
        "max_batch": (8, 32),
        "acceptance": "iid:alpha=0.8,length=2",
        "prompt_tokens": "200",
        "output_tokens": "12",
        "duration_s": 12.0,
        "warmup_s": 3.0,
        "jobs": 1,
    }
    return PlanOptions(**{**usual, **others})  # type: ignore[arg-type]


class CompiledMarket(Market):
    """A market without `chunked`, which is simulated in Python and many times slower."""

    def schedulers(self, placement: Placement) -> tuple[str, ...]:
        return self.options.schedulers


@dataclass(frozen=True, slots=True)
class KeptTrials(Trials):
    """Trials that remember what was simulated."""

    def holds(self, scenario: Scenario, devices: int) -> bool:
        verifier = (
            scenario.deployment.name,
            scenario.system.drafting,
            scenario.slo,
            scenario.max_batch,
        )
        key = verifier, scenario.scheduler, scenario.source.typical, devices
        if key not in HELD:
            HELD[key] = Trials.holds(self, scenario, devices)
        return HELD[key]


@dataclass
class KeptSearch(Search):
    """A search that remembers what was simulated."""

    judgements: dict[tuple[str, int], LoadJudgement] = field(default_factory=dict)

    def trials(self, seed: int, resolution: float = 0.0) -> Trials:
        usual = super().trials(seed, resolution)
        return KeptTrials(usual.seed, usual.rule, usual.response_s)

    def judge_load(self, candidate: Candidate, load: int) -> LoadJudgement:
        key = candidate.key, load
        if key not in self.judgements:
            self.judgements[key] = super().judge_load(candidate, load)
        return self.judgements[key]


@dataclass
class Plans:
    """Plans of one promise for several numbers of devices, and what each candidate serves by brute force."""

    promise: str
    judgements: dict[tuple[str, int], LoadJudgement] = field(default_factory=dict)

    @cached_property
    def market(self) -> Market:
        return CompiledMarket(options(self.promise, 1))

    def search(self, devices: int) -> KeptSearch:
        market = replace(self.market, options=options(self.promise, devices))
        return KeptSearch(market, lambda *_: None, Workers(), judgements=self.judgements)

    @cached_property
    def served(self) -> dict[str, tuple[Candidate, int]]:
        """What a replica of every candidate serves with all seeds, each one simulated in full."""
        served = {}
        search = self.search(1)
        market = search.market
        for placement in PLACEMENTS:
            for entry in rank(market, placement):
                for scheduler in market.schedulers(placement):
                    candidate = replace(entry.candidate, scheduler=scheduler)
                    served[candidate.key] = (
                        candidate,
                        self._by_brute_force(search, candidate, entry),
                    )
        return served

    def _by_brute_force(self, search: KeptSearch, candidate: Candidate, entry: Ranked) -> int:
        one_seed = most_devices(
            search.market.scenario(candidate), search.trials(0), entry.law.devices
        )
        loads = [load for load in reversed(LOADS) if 0 < load <= one_seed][:LOADS_JUDGED]
        return next((load for load in loads if search.judge_load(candidate, load).keeps), 0)

    def rent(self, devices: int, placement: Placement) -> float | None:
        """Return the least rent of a place to draft by brute force."""
        rents = [
            round(ceil(devices / served) * candidate.server.price_per_hour, 6)
            for candidate, served in self.served.values()
            if candidate.placement == placement and served
        ]
        return min(rents, default=None)

    def plan(
        self, devices: int
    ) -> tuple[dict[Placement, Found], dict[Placement, ReplicaFleet | None]]:
        search = self.search(devices)
        found = {
            placement: search.best(rank(search.market, placement), placement, "")
            for placement in PLACEMENTS
        }
        fleets = {
            placement: search.fleet(entry.cheapest[0]) if entry.cheapest else None
            for placement, entry in found.items()
        }
        return found, fleets


ALL_PLANS = {promise: Plans(promise) for promise in PROMISES}


@pytest.fixture(scope="module", autouse=True)
def _one_memory() -> None:
    HELD.clear()


@pytest.mark.parametrize("promise", nightly_except(["4:0.5,8:0.5", "16"], PROMISES))
def test_the_plan_is_what_brute_force_over_its_candidates_finds(promise: str) -> None:
    """Every way to decode has its least rent, and the kinds of replicas that cost as much are all named."""
    plans = ALL_PLANS[promise]
    for devices in DEVICES:
        found, fleets = plans.plan(devices)
        for placement, fleet in fleets.items():
            least = plans.rent(devices, placement)
            assert (fleet.price_per_hour if fleet else None) == least, (devices, placement)
            equal = {
                candidate.server.label
                for candidate, served in plans.served.values()
                if candidate.placement == placement
                and served
                and round(ceil(devices / served) * candidate.server.price_per_hour, 6) == least
            }
            assert {entry.server.label for entry in found[placement].cheapest} == equal, (
                devices,
                placement,
            )
            if fleet:
                _, served = plans.served[fleet.candidate.key]
                assert fleet.devices_served == served
                assert fleet.replicas * served >= devices > (fleet.replicas - 1) * served
                assert fleet.candidate.server.bits == max(
                    entry.server.bits for entry in found[placement].cheapest
                ), "weights of fewer bits are other outputs, which no rent pays for here"


def rents(promise: str) -> Sequence[float]:
    plans = ALL_PLANS[promise]
    fleets = (cheapest(plans.plan(devices)[1].values()) for devices in DEVICES)
    return [fleet.price_per_hour if fleet else float("inf") for fleet in fleets]


@pytest.mark.parametrize("promise", PROMISES)
def test_the_rent_never_falls_as_devices_are_added(promise: str) -> None:
    assert list(rents(promise)) == sorted(rents(promise))


def test_the_rent_never_falls_as_the_promise_grows() -> None:
    by_promise = [rents(promise) for promise in PROMISES]
    for lax, strict in pairwise(by_promise):
        assert all(less <= more for less, more in zip(lax, strict, strict=True))
