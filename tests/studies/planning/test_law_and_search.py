"""The law that decides what is simulated, and the search for what a replica serves."""

from dataclasses import replace
from pathlib import Path

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.loading import load
from specbench_kit.profilers.devices import bundled_devices
from specbench_kit.serving.figures import Interval
from specbench_kit.serving.native_core import load_core
from specbench_kit.serving.options import CapacityRule
from specbench_kit.serving.parallel import Workers
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import Simulation
from specbench_kit.studies.planning import run, search
from specbench_kit.studies.planning.assumptions import assumptions
from specbench_kit.studies.planning.candidates import Candidate, Market, Placement
from specbench_kit.studies.planning.law import DeviceEstimate, Law, draw_responses
from specbench_kit.studies.planning.options import PlanOptions, parse_classes, parse_link
from specbench_kit.studies.planning.search import (
    LOADS,
    ReplicaFleet,
    Search,
    Trials,
    most_devices,
    rank,
)


def options(promise: str, **others: object) -> PlanOptions:
    usual: dict[str, object] = {
        "devices": 300,
        "classes": parse_classes(promise),
        "link": 0.04,
        "gpus": ("l40s", "h100"),
        "cards": (1, 2),
        "bits": (16, 4),
        "max_batch": (16, 64),
        "acceptance": "iid:alpha=0.8,length=3",
        "prompt_tokens": "200",
        "output_tokens": "60",
    }
    return PlanOptions(**{**usual, **others})  # type: ignore[arg-type]


def test_link_and_classes_are_read_as_they_are_said() -> None:
    assert parse_link("40ms") == parse_link("0.04s") == parse_link(".04 s") == pytest.approx(0.04)
    assert parse_classes("4:0.5,8:0.5") == ((4.0, 0.5), (8.0, 0.5))
    assert parse_classes("6") == ((6.0, 1.0),)
    assert options("4:0.5,8:0.5").slo == "4/s:0.5,8/s:0.5"


def test_a_recorded_link_stands_for_the_round_trip(tmp_path: Path) -> None:
    """The law counts with the mean of the recording, simulations follow it, and the plan keeps a copy."""
    path = tmp_path / "home.csv"
    path.write_text("0.02\n0.06\n0.04\n", encoding="utf-8")
    market = Market(options("4", link=parse_link(str(path))))
    candidate = rank(market, "edge")[0].candidate
    scenario = market.scenario(candidate)
    assert scenario.deployment.link.rtt_s == pytest.approx(0.04)
    assert scenario.network.trace is not None
    (moved,) = (
        entry for entry in assumptions(market, planned(candidate)) if entry.name == "round trip"
    )
    assert (moved.assumed, moved.moved) == ("40 ms on average", "80 ms on average")
    assert moved.scenario.network.trace is not None
    assert moved.scenario.network.trace.rtt_s == pytest.approx([0.04, 0.12, 0.08])
    checks = run.write_deployment(tmp_path, market, planned(candidate))
    # A stated acceptance says nothing of drafts ahead of the server.
    assert checks.pop("capacity_ahead") == ""
    assert len(checks) == 2
    assert all("--link-trace link.csv" in check for check in checks.values())
    assert (tmp_path / "link.csv").read_text(encoding="utf-8") == path.read_text(encoding="utf-8")
    with pytest.raises(SkitError, match="cannot read the link trace"):
        rank(Market(options("4", link=parse_link(str(tmp_path / "none.csv")))), "edge")


def test_what_is_stated_of_a_recorded_link_goes_with_its_copy(tmp_path: Path) -> None:
    path = tmp_path / "home.txt"
    path.write_text("20\n60\n40\n", encoding="utf-8")
    market = Market(options("4", link=parse_link(f"{path}:unit=ms")))
    candidate = rank(market, "edge")[0].candidate
    assert market.scenario(candidate).deployment.link.rtt_s == pytest.approx(0.04)
    checks = run.write_deployment(tmp_path, market, planned(candidate))
    # A stated acceptance says nothing of drafts ahead of the server.
    assert checks.pop("capacity_ahead") == ""
    assert all("--link-trace link.txt:unit=ms" in check for check in checks.values())
    assert (tmp_path / "link.txt").read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


def test_every_power_says_where_it_comes_from() -> None:
    for device in bundled_devices().values():
        assert bool(device.power_w) == bool(device.power_date) == bool(device.power_source)


def planned(candidate: Candidate) -> ReplicaFleet:
    """Return a fleet of one replica that was not judged."""
    return ReplicaFleet(candidate, 1, 9, 9, Interval(0.0), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["4:0.5,8:0.6", "4:0.5,4:0.5", "0", "-1", "fast", "4:1.5,8:-0.5", "4:x"]
)
def test_a_promise_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(SkitError, match="--class"):
        parse_classes(text)


@pytest.mark.parametrize(("text", "ways"), [("60", "60ms or 0.06s"), ("0.04", "40ms or 0.04s")])
def test_a_link_without_a_unit_is_refused(text: str, ways: str) -> None:
    with pytest.raises(SkitError, match=f"--link {text} has no unit: write {ways}"):
        parse_link(text)


@pytest.mark.parametrize("text", ["soon", "40 hours", "-3ms", ""])
def test_a_link_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(SkitError, match="--link takes a round trip"):
        parse_link(text)


def estimates(promise: str, **others: object) -> dict[str, DeviceEstimate]:
    market = Market(options(promise, **others))
    ranked = (entry for placement in run.PLACEMENTS for entry in rank(market, placement))
    return {f"{entry.candidate.placement} {entry.candidate.label}": entry.law for entry in ranked}


def test_by_the_law_a_stricter_promise_never_serves_more_devices() -> None:
    lax, strict = estimates("3:0.5,6:0.5"), estimates("4:0.5,8:0.5")
    assert len(strict) > 20
    assert strict.keys() <= lax.keys()
    for label, law in strict.items():
        assert law.devices <= lax[label].devices, label
        assert law.bound <= lax[label].bound, label
        assert law.devices <= law.bound, label


def test_by_the_law_a_longer_link_and_longer_prompts_never_serve_more_devices() -> None:
    base = estimates("4")
    for changes in ({"link": 0.2}, {"prompt_tokens": "800"}):
        moved = estimates("4", **changes)
        assert all(law.devices <= base[label].devices * 1.0001 for label, law in moved.items())


def test_the_law_is_close_to_the_simulator_where_all_responses_are_alike() -> None:
    market = Market(options("8", gpus=("l40s",), output_tokens="30"))
    server = next(server for server in market.servers() if (server.members, server.bits) == (1, 4))
    candidate = Candidate(server, "edge", "fixed-k:k=1", "fcfs", 16)
    scenario = market.scenario(candidate)
    law = Law(scenario, draw_responses(scenario), 0.05).estimate()
    served = most_devices(
        scenario, Search(market, lambda *_: None, Workers()).trials(0), round(law.devices)
    )
    assert 0.7 * served < law.devices < 1.4 * served
    assert served <= law.bound


class Long(Trials):
    """Trials of one long simulation each, most of whose time no start of the devices is in."""

    def at(self, scenario: Scenario, devices: int, times: float = 1.0) -> Scenario:
        seconds = {"duration_s": 60 * self.response_s, "warmup_s": 6 * self.response_s}
        return replace(scenario, devices=devices, **seconds)


def test_a_short_try_finds_what_a_long_simulation_does() -> None:
    """Where all devices sent their prompts within five seconds, responses of 15 s came in waves, and 60 were served."""
    market = Market(options("8", gpus=("l40s",), prompt_tokens="400", output_tokens="120"))
    server = next(server for server in market.servers() if (server.members, server.bits) == (1, 4))
    scenario = market.scenario(Candidate(server, "edge", "fixed-k:k=1", "fcfs", 64))
    trials = Search(market, lambda *_: None, Workers()).trials(0)
    tried = trials.at(scenario, 70)
    assert tried.arrivals.ramp_s == market.response_s == 15.0
    assert tried.warmup_s == tried.arrivals.ramp_s + market.slowest_s
    served = most_devices(scenario, trials, 70)
    assert served == pytest.approx(
        most_devices(scenario, Long(0, trials.rule, trials.response_s), 70), rel=0.05
    )


def test_the_capacity_factor_falls_with_the_batch_and_rises_with_the_draft() -> None:
    """It is what drafting adds to a server's batches: why a plan of large batches gains less than a sweep says."""
    market = Market(options("4", gpus=("h100",), acceptance="qwen2.5-coder"))
    server = next(server for server in market.servers() if (server.members, server.bits) == (2, 16))
    factors: dict[str, list[float]] = {}
    for method in ("fixed-k:k=1", "fixed-k:k=6"):
        drafting, verifying = (
            Law(scenario, draw_responses(scenario), 0.05)
            for placement in ("server", "edge")
            for scenario in [market.scenario(Candidate(server, placement, method, "fcfs", 256))]
        )
        factors[method] = [drafting.capacity_factor(batch) for batch in (1, 16, 64, 256)]
        assert factors[method] == pytest.approx(
            [drafting.batch_s(b) / verifying.batch_s(b) for b in (1, 16, 64, 256)]
        )
    assert factors["fixed-k:k=6"] == sorted(factors["fixed-k:k=6"], reverse=True)
    assert all(1 < short < long for short, long in zip(*factors.values(), strict=True))
    assert factors["fixed-k:k=6"][0] > 1.3 > 1.2 > factors["fixed-k:k=6"][-1]


PIPELINES: dict[str, object] = {
    "target": "llama3.1-70b",
    "gpus": ("l40s",),
    "cards": (1, 4, 8),
    "stages": (1, 2, 4),
}


def test_pipelines_are_tried_for_models_that_no_card_holds() -> None:
    market = Market(options("2", **PIPELINES))
    layouts = {(server.members, server.stages) for server in market.servers() if server.bits == 16}
    assert layouts == {(members, stages) for members in (4, 8) for stages in (1, 2, 4)}
    assert {server.stages for server in market.servers() if server.bits == 4} == {1}
    assert "4 x l40s in 2 stages, 16-bit weights" in {server.label for server in market.servers()}
    assert all(candidate.server.stages == 1 for candidate in market.candidates("server"))


@pytest.mark.skipif(load_core() is None, reason="the event loop was not compiled")
@pytest.mark.parametrize("placement", ["edge", "server", "none"])
def test_what_a_plan_simulates_runs_in_compiled_code(placement: Placement) -> None:
    """A plan makes hundreds of simulations, which take a dozen times as long in Python."""
    market = Market(options("1", **PIPELINES))
    first = {candidate.server.label: candidate for candidate in market.candidates(placement)}
    assert len(first) == len(
        {server.label for server in market.servers() if placement != "server" or server.stages == 1}
    )
    tried = [
        replace(candidate, scheduler=name)
        for candidate in first.values()
        for name in market.schedulers(placement)
    ]
    cores = {
        candidate.label: Simulation(market.scenario(candidate), 0)._core for candidate in tried
    }
    assert cores
    assert [label for label, core in cores.items() if core is None] == []


@pytest.mark.parametrize("placement", ["edge", "none"])
def test_the_law_of_a_pipeline_is_close_to_the_simulator(placement: Placement) -> None:
    market = Market(options("1", output_tokens="30", bits=(16,), **PIPELINES))
    server = next(
        server for server in market.servers() if (server.members, server.stages) == (4, 4)
    )
    method = "fixed-k:k=1" if placement == "edge" else "autoregressive"
    scenario = market.scenario(Candidate(server, placement, method, "fcfs", 16))
    law = Law(scenario, draw_responses(scenario), 0.05).estimate()
    served = most_devices(
        scenario, Search(market, lambda *_: None, Workers()).trials(0), round(law.devices)
    )
    assert 0.7 * served < law.devices < 1.4 * served
    assert served <= law.bound


def test_a_pipeline_is_what_its_written_deployment_says(tmp_path: Path) -> None:
    market = Market(options("1", bits=(16,), **PIPELINES))
    server = next(
        server for server in market.servers() if (server.members, server.stages) == (8, 4)
    )
    run.write_deployment(
        tmp_path, market, planned(Candidate(server, "edge", "fixed-k:k=1", "fcfs", 16))
    )
    written = load(str(tmp_path / run.DEPLOYMENT))
    assert written is not None
    verifier = market.deployment(server, "edge").verifier
    assert (verifier.stages, verifier.hand_over.per_pass) == (4, 3)
    assert replace(written.verifier, origin="") == replace(verifier, origin="")


def test_memory_bounds_what_a_replica_serves() -> None:
    market = Market(options("1", gpus=("h100",), cards=(1,), bits=(16,)))
    (server,) = market.servers()
    room = market.kv_tokens(server, "edge") / 260
    assert all(entry.law.devices <= room + 1 for entry in rank(market, "edge"))
    assert market.kv_tokens(server, "server") < market.kv_tokens(server, "edge")


def test_a_model_that_fits_on_no_card_is_refused() -> None:
    with pytest.raises(SkitError, match="fits on none of l40s"):
        Market(options("4", gpus=("l40s",), cards=(1,), bits=(16,))).servers()


def test_an_impossible_promise_is_refused_before_anything_is_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("simulated")

    monkeypatch.setattr(search, "simulate", refuse)
    monkeypatch.setattr(Workers, "map", refuse)
    with pytest.raises(
        SkitError, match="no fleet of l40s, h100 keeps a promise of 900 tokens/s"
    ) as error:
        run.PlanRun(options("900"), lambda *_: None).run()
    assert "promise at most" in str(error.value)
    assert "\n" not in str(error.value)


def test_where_the_link_alone_makes_responses_late_the_link_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Responses of 60 tokens at 6 tokens/s have 10 s: no server helps over a link of 11 s, and any does over 0.1 s."""
    refused = options("6", link=11.0, output_tokens="60")
    monkeypatch.setattr(search, "simulate", lambda *_: pytest.fail("simulated"))
    with pytest.raises(
        SkitError, match=r"over a link of 11\.0 s: .* late from 10\.0 s on"
    ) as error:
        run.PlanRun(refused, lambda *_: None).run()
    assert "promise at most 5.45, or give longer --output-tokens" in str(error.value)
    near = Market(options("6", link=0.1, output_tokens="60"))
    laws = {placement: rank(near, placement)[0].law for placement in run.PLACEMENTS}
    assert laws["none"].longest_rtt_s == laws["server"].longest_rtt_s == pytest.approx(10)
    assert laws["edge"].longest_rtt_s < 10, "a device that drafts crosses the link in every round"
    run.require_possible(near, {placement: rank(near, placement) for placement in run.PLACEMENTS})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"methods": ("nonsense",)}, "unknown method 'nonsense'"),
        ({"methods": ("fixed-k:depth=2",)}, "fixed-k"),
        ({"acceptance": "nowhere.parquet"}, "nowhere.parquet"),
        ({"schedulers": ("nonsense",)}, "unknown scheduler 'nonsense'"),
    ],
)
def test_what_cannot_be_planned_with_is_named_and_not_called_impossible(
    changes: dict[str, object], said: str
) -> None:
    with pytest.raises(SkitError, match=said) as error:
        run.PlanRun(options("4", **changes), lambda *_: None).run()
    assert "no fleet" not in str(error.value)


NONE = CapacityRule(resolution=0.0)


class UpTo(Trials):
    """Trials in which a load is served up to a number of devices."""

    def holds(self, scenario: Scenario, devices: int) -> bool:
        return self.rule is not NONE and devices <= self.rule.most


@pytest.mark.parametrize("most", [0, 1, 2, 7, 60, 61, 997, 20000, 30000])
def test_the_search_finds_the_last_load_that_is_served_from_wherever_it_begins(most: int) -> None:
    scenario = Market(options("4")).scenario(rank(Market(options("4")), "edge")[0].candidate)
    trials = UpTo(0, replace(CapacityRule(), most=most, resolution=0.0) if most else NONE, 1.0)
    (devices,) = {most_devices(scenario, trials, first) for first in (0.3, 1, 50, 4000, 1e9)}
    assert devices <= most
    assert min(most, LOADS[-1]) - devices <= max(1, 0.02 * most)


def test_replicas_of_prices_of_the_user_are_ranked_by_them(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    dated = 'date = "2026-11-09"\nsource = "ours"\n'
    path.write_text(
        f"[l40s]\nprice_per_hour = 90.0\n{dated}[h100]\nprice_per_hour = 1.0\n{dated}",
        encoding="utf-8",
    )
    ranked = rank(Market(options("4", prices=path, max_batch=(8, 16, 32, 64, 128, 256))), "edge")
    assert {entry.candidate.server.device.name for entry in ranked[:10]} == {"h100"}


def test_a_stated_acceptance_chooses_no_method() -> None:
    names = ("fixed-k:k=2", "fixed-k:k=6")
    stated = Market(options("4"))
    assert (stated.is_stated, stated.methods) == (True, ("fixed-k",))
    of_trace = Market(options("4", methods=names, acceptance="qwen2.5-coder"))
    assert (of_trace.is_stated, of_trace.methods) == (False, names)
