"""A whole plan: cheapest, never a dominated card, never cheaper for a stricter promise, and kept by the simulator."""

import json
import re
import shlex
from copy import deepcopy
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from command_line import read_object, skit_here
from matplotlib.figure import Figure
from msgspec import structs, to_builtins
from nightly import nightly_except
from study_pages import assert_made_again

from specbench_kit.deployments.loading import load
from specbench_kit.profilers.devices import find_device
from specbench_kit.reports.document import BulletList, CodeBlock, Document, Table
from specbench_kit.reports.render_markdown import render
from specbench_kit.reports.writing.drawing import WIDTH_IN
from specbench_kit.reports.writing.formatting import seconds, span, times
from specbench_kit.serving.figures import Interval
from specbench_kit.studies.planning.candidates import Market, Placement
from specbench_kit.studies.planning.kind import PlanStudy
from specbench_kit.studies.planning.options import PlanOptions, parse_classes
from specbench_kit.studies.planning.report import (
    WAYS,
    build,
    dollars,
    fleet_table,
    headline,
    pareto,
    terminal,
)
from specbench_kit.studies.planning.run import START_S, PlanRun, write_deployment
from specbench_kit.studies.planning.search import ReplicaFleet
from specbench_kit.studies.planning.summary import FleetSummary
from specbench_kit.studies.serving.capacity import CapacityRule, steps_tried

pytestmark = pytest.mark.slow

WORSE = """title = "a card like an L40S with half of everything"
memory_bytes = 48e9
bandwidth_bytes_per_s = 432e9
peak_flops = { float32 = 45.8e12, float16 = 181e12, bfloat16 = 181e12 }
power_w = 350
"""


PROGRESS: dict[str, tuple[int, int]] = {}
"""The last count of every step of the plan."""


def planned(folder: Path, promise: str) -> PlanStudy:
    (folder / "worse.toml").write_text(WORSE, encoding="utf-8")
    dated = 'price_per_hour = 0.79\ndate = "2026-11-09"\nsource = "a test"\n'
    (folder / "prices.toml").write_text(f"[l40s]\n{dated}[worse]\n{dated}", encoding="utf-8")
    options = PlanOptions(
        devices=90,
        classes=parse_classes(promise),
        link=0.04,
        gpus=("l40s", str(folder / "worse.toml")),
        cards=(1,),
        bits=(4,),
        methods=("fixed-k",),
        schedulers=("fcfs",),
        max_batch=(16,),
        duration_s=40.0,
        warmup_s=5.0,
        prices=folder / "prices.toml",
        acceptance="iid:alpha=0.8,length=2",
        prompt_tokens="200",
        output_tokens="12",
        jobs=1,
        out=folder,
    )

    def report(step: str, done: int, planned: int) -> None:
        PROGRESS[step] = (done, planned)

    return PlanRun(options, report, ("skit", "plan")).run()


@pytest.fixture(scope="module")
def plan_run(tmp_path_factory: pytest.TempPathFactory) -> PlanStudy:
    return planned(tmp_path_factory.mktemp("plan"), "8:0.5,12:0.5")


def test_no_name_in_the_legend_of_the_figure_is_cut(plan_run: PlanStudy) -> None:
    picture = pareto(plan_run.result)
    figure = Figure(figsize=(WIDTH_IN, picture.height_in), layout="constrained")
    picture.draw(figure.subplots())
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(WAYS.values())
    box, page = legend.get_window_extent(), figure.bbox
    assert 0 <= box.x0 < box.x1 <= page.x1
    assert 0 <= box.y0 < box.y1 <= page.y1


def test_the_figure_has_the_rents_of_the_table_at_the_promise_of_the_plan(
    plan_run: PlanStudy,
) -> None:
    summary = plan_run.result
    drawn = {
        point.drafting: point.kept.price_per_hour
        for point in summary.pareto
        if point.kept and point.scale == 1
    }
    assert drawn == {way: fleet.price_per_hour for way, fleet in summary.fleets.items() if fleet}
    axes = Figure().subplots()
    pareto(summary).draw(axes)
    *lines, ring = axes.lines
    (x,), (y,) = ring.get_data()
    assert y == summary.plan.price_per_hour
    assert (x, y) in {point for line in lines for point in zip(*line.get_data(), strict=True)}


def test_one_dear_point_does_not_flatten_the_figure(plan_run: PlanStudy) -> None:
    """A rent more than 20 times that of another is drawn on a logarithmic axis, and one less than that from zero."""
    summary = deepcopy(plan_run.result)
    first, *others = (point.kept for point in summary.pareto if point.kept)
    for other in others:
        other.price_per_hour = 1.0
    for factor, scale in ((2, "linear"), (30, "log")):
        first.price_per_hour = factor
        axes = Figure().subplots()
        pareto(summary).draw(axes)
        assert axes.get_yscale() == scale
        assert axes.get_xscale() == "linear"


def test_the_plan_says_what_a_token_takes_in_joules(plan_run: PlanStudy) -> None:
    """An L40S takes 350 W while it works. The devices' card states no power: known are those that draft nothing."""
    for fleet in filter(None, plan_run.result.fleets.values()):
        assert fleet.server_joules_per_token is not None
        assert 0 < fleet.server_joules_per_token.mean < 350 / fleet.throughput * 1.01
        for energy in (fleet.device_joules_per_token, fleet.joules_per_device_hour):
            assert energy is None if fleet.drafting == "edge" else energy.mean == 0
    report = (plan_run.folder / "report.md").read_text(encoding="utf-8")
    assert "J / token of servers" in report


def test_the_plan_is_the_cheapest_of_its_ways_and_lies_in_its_range(plan_run: PlanStudy) -> None:
    plan = plan_run.result.plan
    fleets = [fleet for fleet in plan_run.result.fleets.values() if fleet]
    assert plan.price_per_hour == min(fleet.price_per_hour for fleet in fleets)
    assert plan.price_per_hour == pytest.approx(0.79 * plan.cards)
    assert plan.least_price_per_hour <= plan.price_per_hour <= plan.most_price_per_hour
    assert plan.replicas * plan.devices_per_replica >= 90
    assert len(plan.served.by_seed) == 5
    for fleet in fleets:
        assert fleet.violation_rate.high <= 0.05


def test_the_summary_that_marks_a_plan_as_whole_is_written_last(plan_run: PlanStudy) -> None:
    files = [path for path in plan_run.folder.rglob("*") if path.is_file()]
    assert len(files) > 6
    assert max(files, key=lambda path: path.stat().st_mtime_ns).name == "summary.json"


@pytest.mark.figures
def test_the_page_of_a_plan_is_made_again(plan_run: PlanStudy, tmp_path: Path) -> None:
    assert_made_again(plan_run.folder, tmp_path)


def test_a_dominated_card_is_never_chosen(plan_run: PlanStudy) -> None:
    assert find_device("l40s").title == plan_run.result.plan.title
    assert {fleet.card for fleet in plan_run.result.fleets.values() if fleet} == {"l40s"}


def test_a_stricter_promise_never_costs_less(plan_run: PlanStudy) -> None:
    for way in ("edge", "server", "none"):
        points = [point for point in plan_run.result.pareto if point.kept and point.drafting == way]
        rents = [point.kept.price_per_hour for point in points if point.kept]
        assert [point.promised for point in points] == sorted({point.promised for point in points})
        assert len(rents) >= 2
        assert rents == sorted(rents), way


def test_the_chosen_replica_given_to_simulate_keeps_the_promise(
    plan_run: PlanStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan_run.folder)
    program, *arguments = shlex.split(plan_run.run.check)
    assert program == "skit"
    assert str(plan_run.folder.parent) not in json.dumps(to_builtins(plan_run.run))
    done = skit_here(*arguments, "--jobs", 1, "--out", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout.splitlines()[-1])["summary"]["rows"]
    assert row["devices"] == plan_run.result.plan.devices_per_replica
    assert row["figures"]["overall"]["violation_rate"]["mean"] <= 0.05


def test_a_search_for_the_capacity_of_the_replica_finds_what_the_plan_gives_it(
    plan_run: PlanStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan_run.folder)
    program, *arguments = shlex.split(plan_run.run.check_capacity)
    assert program == "skit"
    done = skit_here(*arguments, "--jobs", 1, "--out", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout.splitlines()[-1])["summary"]["rows"]
    # A device more or less may pass by other draws of the same scene.
    assert (
        row["capacity"]["low"] - 1
        <= plan_run.result.plan.devices_served
        <= row["capacity"]["high"] + 1
    )


def test_the_terminal_names_cards_as_options_do(plan_run: PlanStudy) -> None:
    tables = [
        table for table in terminal(plan_run.run, plan_run.result) if isinstance(table, Table)
    ]
    assert [row[1].partition(" (")[0] for row in tables[0].texts()] == [
        f"{fleet.cards} x l40s" for fleet in plan_run.result.fleets.values()
    ]
    assert "x NVIDIA L40S" in (plan_run.folder / "report.md").read_text(encoding="utf-8")


def test_every_step_of_a_plan_ends_with_all_of_it_done(plan_run: PlanStudy) -> None:
    assert plan_run.folder.exists()
    assert len(PROGRESS) > 6
    assert {step: done for step, (done, _) in PROGRESS.items()} == {
        step: all_ for step, (_, all_) in PROGRESS.items()
    }


@pytest.mark.parametrize(
    ("seconds", "said"), [(3.0, "10 seconds"), (61.0, "70 seconds"), (91.0, "2 minutes")]
)
def test_the_terminal_says_how_long_the_check_takes(
    plan_run: PlanStudy, seconds: float, said: str
) -> None:
    """By a simulation that was timed, for as many loads as the check tries, whose number is on the page."""
    *_, note = terminal(structs.replace(plan_run.run, check_s=seconds), plan_run.result)
    assert f"`skit capacity` about {said} on this machine" in note.text
    assert START_S < (plan_run.run.check_s or 0.0) < 60
    loads = steps_tried(plan_run.result.plan.devices_served, CapacityRule())
    assert f"about {len(loads)} loads with each of 5 seeds" in (
        plan_run.folder / "report.md"
    ).read_text("utf-8")


def test_the_page_describes_the_replica_and_not_the_deployment_that_it_was_made_of(
    plan_run: PlanStudy,
) -> None:
    page = render(build(plan_run.run, plan_run.result, []))
    said = page.partition("## The replica of the plan (modelled)")[2]
    assert re.search(
        rf"A replica of a plan: .*{plan_run.result.plan.card}.* verifies for the devices of '", said
    )
    assert "with the plan's servers" in said


def test_a_rival_within_the_plans_range_is_called_one(plan_run: PlanStudy) -> None:
    summary = deepcopy(plan_run.result)
    plan = summary.plan
    (way, *_) = (
        way for way, fleet in summary.fleets.items() if fleet is not None and way != plan.drafting
    )
    for share_of_most, close in ((0.999, True), (1.001, False)):
        summary.fleets[way].least_price_per_hour = share_of_most * plan.most_price_per_hour
        summary.fleets[way].price_per_hour = summary.fleets[way].most_price_per_hour = (
            2 * plan.most_price_per_hour
        )
        report = render(build(plan_run.run, summary, []))
        assert f"{WAYS[way]} would cost" in headline(summary)
        named = [
            line
            for line in report.splitlines()
            if "NOT SHOWN TO BE CHEAPER" in line and WAYS[way] in line
        ]
        assert bool(named) is close
        sentence = headline(summary).partition(f"{WAYS[way]} would cost")[2].partition(";")[0]
        assert ("with a range that overlaps" in sentence) is close


def test_the_weightiest_assumptions_are_moved(plan_run: PlanStudy) -> None:
    moved = plan_run.result.assumptions
    assert len({row.name for row in moved}) == 5
    for row in moved:
        before = plan_run.result.fleets[row.drafting]
        assert row.price_before_per_hour == before.price_per_hour
        assert row.price_per_hour is None or row.ratio == pytest.approx(
            row.price_per_hour / before.price_per_hour
        )


def test_the_plan_says_what_drafts_and_how_fast(plan_run: PlanStudy) -> None:
    """In the answer and first in what it rests on, whether or not the plan drafts there."""
    deployment = load("wisp-roofline")
    assert deployment is not None
    token_s = deployment.drafter.latency.seconds(((1, 1),))
    said = f"{deployment.drafter.device}, {seconds(token_s)} per drafted token"
    assert plan_run.result.drafters["edge"].token_s == token_s
    assert headline(plan_run.result).endswith(f" The devices that draft: {said}.")
    (bullets,) = (
        block for block in terminal(plan_run.run, plan_run.result) if isinstance(block, BulletList)
    )
    server = plan_run.result.drafters["server"]
    assert bullets.items[0] == (
        f"drafting device, of the deployment `wisp-roofline`: {said} on the devices; {server.device}, "
        f"{seconds(server.token_s)} per drafted token on the server"
    )
    report = render(build(plan_run.run, plan_run.result, []))
    assert report.index(bullets.items[0]) < report.index("## The cheapest fleets")


@pytest.mark.parametrize("placement", nightly_except(["server"], ["none", "server"]))
def test_the_command_for_devices_that_draft_ahead_can_be_pasted(
    placement: Placement, plan_run: PlanStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a plan whose servers draft, too; stated acceptance says nothing of such a method."""
    assert plan_run.run.capacity_ahead == ""
    options = PlanOptions(
        devices=9,
        classes=((6.0, 1.0),),
        link=0.04,
        gpus=("a100",),
        cards=(1,),
        max_batch=(16,),
        duration_s=40.0,
        warmup_s=5.0,
        prompt_tokens="200",
        output_tokens="12",
    )
    market = Market(options)
    nothing: Any = None
    fleet = ReplicaFleet(next(market.candidates(placement)), 1, 9, 9, Interval(0.0), nothing)
    program, *arguments = shlex.split(write_deployment(tmp_path, market, fleet)["capacity_ahead"])
    assert program == "skit"
    monkeypatch.chdir(tmp_path)
    done = skit_here(*arguments, "--jobs", 1, "--seeds", 1, "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    run = read_object(folder / "run.json")
    assert [entry["method"] for entry in run["series"]] == ["decoupled"]
    (deployment,) = run["deployments"].values()
    assert (deployment["drafter"]["device"], deployment["placement"]) == ("edge device", "edge")
    assert deployment["verifier"]["device"] == find_device("a100").title
    note = next(
        block
        for block in terminal(
            structs.replace(plan_run.run, capacity_ahead="skit capacity x"), plan_run.result
        )
        if isinstance(block, CodeBlock)
    )
    assert note.text == "skit capacity x"


def test_without_a_deployment_the_plan_says_which_one_it_took(tmp_path: Path) -> None:
    done = skit_here(
        *("plan", "--devices", 2, "--class", 900, "--gpus", "l40s", "--cards", 1, "--out", tmp_path)
    )
    assert "no --deployment: taking wisp-roofline, for devices that draft (edge device)" in (
        done.stdout
    )


def test_the_drafts_are_always_moved_against_the_plan(plan_run: PlanStudy) -> None:
    """By 0.8 times the rate and 2 times the time where the plan drafts, and by 1.25 and 0.5 times where it does not."""
    summary = plan_run.result
    acceptance, speed, *others = summary.assumptions
    assert (acceptance.name, speed.name) == ("acceptance", "drafting speed")
    assert all(row.drafting == summary.plan.drafting for row in others)
    assert acceptance.drafting == speed.drafting != "none"
    often, slower = ("0.8", "2") if summary.plan.drafting != "none" else ("1.25", "0.5")
    assert "at a rate of 0.80" in acceptance.assumed
    assert acceptance.moved.startswith(f"{often} times that rate")
    assert speed.moved.startswith(f"{slower} times that")
    report = render(build(plan_run.run, summary, []))
    assert f"| acceptance | {WAYS[acceptance.drafting]} |" in report


def test_a_moved_draft_that_turns_the_plan_says_so(plan_run: PlanStudy) -> None:
    summary = deepcopy(plan_run.result)
    acceptance = summary.assumptions[0]
    without = summary.fleets["none"]
    for planned, moved, said in (
        ("edge", 2.0, "is cheaper then"),
        ("edge", 0.5, ""),
        ("none", 0.5, "cheaper than"),
    ):
        summary.plan.drafting, acceptance.drafting = planned, "edge"
        acceptance.price_per_hour = moved * without.price_per_hour
        (sentence,) = (
            item
            for block in terminal(plan_run.run, summary)
            if isinstance(block, BulletList)
            for item in block.items
            if item.startswith("acceptance:")
        )
        assert sentence.endswith(
            f"as much: autoregressive decoding {said} ({dollars(without.price_per_hour)})"
        ) or (
            f"as much: {said} the plan" in sentence
            if said == "cheaper than"
            else sentence.endswith("as much")
        )


def test_every_way_to_decode_has_the_range_of_its_rent(plan_run: PlanStudy) -> None:
    """The rents of what its replica serves by seed and at both ends of what step times may be lie in it."""
    fleets = [fleet for fleet in plan_run.result.fleets.values() if fleet]
    assert len(fleets) == 3
    text = render(Document.of("", [fleet_table(plan_run.result)]))
    for fleet in fleets:
        assert len(fleet.served.by_seed) == 5
        assert len(fleet.served_at_ends) >= 2
        rents = [
            rent_of_replicas(fleet, devices) for devices in fleet.served_at_ends.values() if devices
        ]
        assert fleet.least_price_per_hour <= min(rents)
        assert fleet.least_price_per_hour <= fleet.price_per_hour
        if (most := fleet.most_price_per_hour) is not None:
            assert most >= max(rents)
        assert (
            f" {span(dollars(fleet.least_price_per_hour), dollars(most) if most else 'no fleet')} |"
            in text
        )


def test_what_devices_gain_by_drafting_is_told_from_the_capacity_factor_of_a_sweep(
    plan_run: PlanStudy,
) -> None:
    edge, server, factor = (
        *(plan_run.result.fleets[way] for way in ("edge", "server")),
        plan_run.result.capacity_factor,
    )
    assert factor.in_batches > 1
    assert 1 <= factor.batch_size <= server.max_batch
    page = render(build(plan_run.run, plan_run.result, []))
    assert f"serves {times(edge.devices_served / server.devices_served)} as many devices" in page
    assert (
        f"{factor.alone:.2f} for one request at a time here and {factor.in_batches:.2f} in the batches"
        in page
    )
    other = deepcopy(plan_run.result)
    other.fleets["server"].card = "worse"
    assert "capacity factor" not in render(build(plan_run.run, other, []))


def rent_of_replicas(fleet: FleetSummary, served: int) -> float:
    return ceil(90 / served) * fleet.replica_price_per_hour


def test_the_report_begins_with_the_sentence_and_the_figure(plan_run: PlanStudy) -> None:
    report = (plan_run.folder / "report.md").read_text(encoding="utf-8")
    paragraphs = [line for line in report.splitlines() if line]
    assert paragraphs[1].startswith(f"**Rent {plan_run.result.plan.cards} NVIDIA L40S, about $")
    if plan_run.result.plan.drafting == "none":
        assert "autoregressive decoding" in paragraphs[1]
    else:
        assert " as `iid:alpha=0.8,length=2` states" in paragraphs[1]
        assert "STATED ACCEPTANCE" in report
    assert paragraphs[2].startswith("![Rent over the promised speed")
    assert "2026-11-09" in report
    assert "a test" in report
    assert "<svg" in (plan_run.folder / "report.html").read_text(encoding="utf-8")
    names = {
        "run.json",
        "summary.json",
        "candidates.csv",
        "report.md",
        "report.html",
        "plots",
        "verifier.toml",
    }
    assert names | {"deployment.toml"} <= {path.name for path in plan_run.folder.iterdir()}
