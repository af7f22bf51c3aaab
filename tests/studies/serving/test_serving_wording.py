"""What a search for capacity, or a simulation, says first."""

import dataclasses
from collections.abc import Sequence
from io import StringIO
from typing import Any

import pytest
from msgspec import structs, to_builtins
from msgspec.structs import replace
from report_builders import deployment_description, run_document, serving_figures, serving_run
from rich.console import Console

from specbench_kit.core.slo_names import slo_in_words, speed_of
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.deployments.description import describe, described
from specbench_kit.deployments.loading import load
from specbench_kit.metrics.vocabulary import Percentiles
from specbench_kit.reports.document import Heading, Table
from specbench_kit.reports.render_markdown import render
from specbench_kit.reports.sections.cautions import (
    TOY_PAIR,
    constant_steps,
    impossible_times,
    setting_cautions,
)
from specbench_kit.runs.document import RunDescription
from specbench_kit.serving.figures import (
    CapacityRange,
    ClassFigures,
    FigureRange,
    Interval,
    SearchedRow,
    SimulatedRow,
)
from specbench_kit.serving.options import CapacityRule
from specbench_kit.serving.systems.base import systems
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.studies.serving.report import PAGE_COLUMNS, serving_report
from specbench_kit.studies.serving.settings import ServingSettings, _labels
from specbench_kit.studies.serving.summary import CapacitySummary, SimulationSummary
from specbench_kit.studies.serving.terminal import print_serving
from specbench_kit.studies.serving.wording import (
    BUSY,
    acceptance_cautions,
    busy_note,
    derived_capacities,
    derived_range,
    plain_note,
    winners,
)

RULE = CapacityRule(0.05, 64, 0.01, "speed")
POINT: dict[str, Any] = {
    "slo_scale": 1.0,
    "estimator_factor": 1.0,
    "estimator_noise": 0.0,
    "guard_s": 0.0,
}


def searched(
    series: str, low: float | None, mean: float, high: float | None, slo: str = "4", **changes: Any
) -> SearchedRow:
    searched_row = {
        "series": series,
        "slo": slo,
        "unit": "devices",
        "capacity": Interval(mean, low, high),
        "seeds": [],
    }
    return SearchedRow(**(POINT | searched_row | changes))


def simulated(series: str, devices: int, low: float, mean: float, high: float) -> SimulatedRow:
    figures = serving_figures(
        Interval(0.0),
        violation_rate=Interval(mean, low, high),
        throughput=Interval(100.0, 90.0, 110.0),
    )
    return SimulatedRow(series=series, slo="2", devices=devices, figures=figures, **POINT)


def of_search(rows: list[SearchedRow], seeds: int = 5) -> list[str]:
    return winners(
        serving_run(seeds=seeds),
        CapacitySummary(rule=RULE, axes={}, rows=rows, guards=[], ranges=[]),
    )


def simulation(rows: list[SimulatedRow], ranges: Sequence[FigureRange] = ()) -> SimulationSummary:
    return SimulationSummary(
        axes={}, rows=rows, against_first=[], knees=[], guards=[], ranges=list(ranges)
    )


def of_simulation(rows: list[SimulatedRow], seeds: int = 5) -> list[str]:
    return winners(serving_run(seeds=seeds), simulation(rows))


@pytest.mark.parametrize(
    ("rows", "sentences"),
    [
        ([searched("wisp", 80, 90, 100)], []),
        (
            [
                searched("wisp", 80, 90, 100),
                searched("sled", 8, 9, 10),
                searched("fixed", 145, 150, 155),
            ],
            ["At 8 tokens/s take fixed: it serves 150 (145–155) devices, 67% more than wisp."],
        ),
        (
            [searched("wisp", 80, 90, 100), searched("sled", 8, 9, 10)],
            ["At 8 tokens/s take wisp: it serves 90 (80–100) devices, 10.0 times as many as sled."],
        ),
        (
            [searched("wisp", 80, 90, 100), searched("sled", 70, 75, 81)],
            [
                "At 8 tokens/s no difference is shown between wisp, which serves 90 (80–100) devices, and sled: "
                "run more seeds, or take either."
            ],
        ),
        (
            [searched("wisp", 80, 90, 100), searched("sled", 0, 0, 0)],
            [
                "At 8 tokens/s take wisp: it serves 90 (80–100) devices, where nothing is served by sled."
            ],
        ),
        (
            [searched("wisp", 0, 0, 0), searched("sled", 0, 0, 0)],
            ["At 8 tokens/s none of them serves any devices."],
        ),
        (
            [searched("wisp", 90, 90, 90), searched("sled", 90, 90, 90)],
            [
                "At 8 tokens/s no difference is shown between wisp, which serves 90 devices, and sled: "
                "run more seeds, or take either."
            ],
        ),
        (
            [
                searched("wisp", 80, 90, 100),
                searched("sled", 0, 0, 0, refused="no batch can meet it"),
            ],
            [],
        ),
        (
            [
                searched(name, 10 * n, 11 * n, 12 * n, slo)
                for slo in ("1", "4")
                for name, n in (("a", 1), ("b", 2))
            ],
            [
                "At 2 tokens/s take b: it serves 22 (20–24) devices, 2.0 times as many as a.",
                "At 8 tokens/s take b: it serves 22 (20–24) devices, 2.0 times as many as a.",
            ],
        ),
    ],
)
def test_a_search_names_the_system_that_serves_most_and_what_it_leads_by(
    rows: list[SearchedRow], sentences: list[str]
) -> None:
    assert of_search(rows) == sentences


def test_a_simulation_names_the_system_that_breaks_fewest_promises_under_the_highest_load() -> None:
    rows = [simulated("a", 8, 0, 0, 0), simulated("b", 8, 0, 0, 0)]
    rows += [simulated("a", 16, 0.2, 0.25, 0.3), simulated("b", 16, 0.05, 0.1, 0.15)]
    assert of_simulation(rows) == [
        "At 16 devices, promised 4 tokens/s, take b: it breaks 10.0% (5.0%–15.0%) of its promises, "
        "a 25.0% (20.0%–30.0%)."
    ]
    assert (
        of_simulation([replace(row, figures=serving_figures(Interval(0.0))) for row in rows]) == []
    )
    rows[-1] = simulated("b", 16, 0.05, 0.1, 0.22)
    assert of_simulation(rows) == [
        "At 16 devices, promised 4 tokens/s, b breaks 10.0% (5.0%–22.0%) of its promises and a 25.0% (20.0%–30.0%): "
        "no difference is shown, at 100 (90.0–110) and 100 (90.0–110) tokens/s."
    ]


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        (1, "one seed shows no difference"),
        (2, "2 seeds are too few for a verdict"),
        (4, "4 seeds are too few"),
    ],
)
def test_fewer_than_five_seeds_give_no_verdict(seeds: int, words: str) -> None:
    """However far apart the intervals are, nobody is told to take one of the systems."""
    rows = [simulated("a", 16, 0.2, 0.25, 0.3), simulated("b", 16, 0.05, 0.1, 0.15)]
    sentences = [*of_simulation(rows, seeds)]
    sentences += of_search([searched("a", None, 90, None), searched("b", None, 9, None)], seeds)
    assert len(sentences) == 2
    for sentence in sentences:
        assert f": {words}" in sentence
        assert sentence.endswith("so run --seeds 5.")
        assert "take" not in sentence


@pytest.mark.parametrize(
    ("throughputs", "ratio", "said"),
    [
        (((90, 110), (95, 115)), (0.99, 1.01), "no difference is shown there either"),
        (((90, 110), (95, 115)), (0.9, 0.95), "seeds show no difference"),
        (((90, 110), (60, 70)), (0.6, 0.8), "over the whole range"),
        (((60, 70), (90, 110)), (0.9, 1.4), "the verdict does not hold over the range"),
        (((None, None), (None, None)), (0.6, 0.8), "seeds show no difference"),
    ],
)
def test_a_verdict_can_fail_over_a_range_only_where_seeds_show_one(
    throughputs: Sequence[tuple[float | None, float | None]], ratio: tuple[float, float], said: str
) -> None:
    rows = [simulated(series, 16, 0, 0, 0) for series in ("a", "b")]
    rows = [
        replace(row, figures=serving_figures(Interval(0.0), throughput=Interval(100.0, low, high)))
        for row, (low, high) in zip(rows, throughputs, strict=True)
    ]
    condition = {"slo": "2", **POINT, "ends": {}}
    of_first = FigureRange(
        **condition,
        series="a",
        devices=16,
        throughput=(90.0, 110.0),
        violation_rate=None,
        against=None,
        throughput_ratio=None,
    )
    (line,) = derived_range(
        simulation(
            rows, [of_first, replace(of_first, series="b", against="a", throughput_ratio=ratio)]
        )
    )
    assert f" a ({said})." in line
    searches = [
        searched(name, low, 100.0, high)
        for name, (low, high) in zip("ab", throughputs, strict=True)
    ]
    condition["slo"] = "4"
    capacity_range = CapacityRange(
        **condition,
        series="b",
        unit="devices",
        mean=100.0,
        capacity=(90.0, 110.0),
        against="a",
        capacity_ratio=ratio,
    )
    summary = CapacitySummary(rule=RULE, axes={}, rows=searches, guards=[], ranges=[capacity_range])
    (line,) = derived_capacities(summary)
    assert f" a ({said}); " in line


@pytest.mark.parametrize(
    ("busy", "late", "is_said"), [(0.99, 0.0, True), (0.5, 0.0, False), (0.99, 0.3, False)]
)
def test_a_busy_server_that_keeps_its_promises_is_explained(
    busy: float, late: float, is_said: bool
) -> None:
    row = simulated("a", 16, late, late, late)
    row.figures.server.utilisation = Interval(busy)
    summary = simulation([row])
    assert busy_note(summary) == ([BUSY] if is_said else [])
    with StringIO() as stream:
        print_serving(Console(file=stream, width=80), serving_run({"label": "a"}), summary)
        assert ("Busy is the share of time" in stream.getvalue()) == is_said


def on_terminal(summary: SimulationSummary) -> str:
    with StringIO() as stream:
        print_serving(Console(file=stream, width=80), serving_run({"label": "a"}), summary)
        return stream.getvalue()


def test_the_terminal_names_classes_only_where_there_are_several() -> None:
    row = simulated("a", 16, 0, 0, 0)
    assert "class" not in on_terminal(simulation([row]))
    group = ClassFigures(**structs.asdict(row.figures.overall), promised_speed=Interval(4.0))
    row.figures.classes |= {"class-1": group, "class-2": group}
    assert "class" in on_terminal(simulation([row])).split()


def test_a_narrow_terminal_breaks_names_and_no_numbers() -> None:
    rows = [simulated("wisp, threshold:max_draft=8", devices, 0, 0, 0) for devices in (20, 60)]
    waited = Percentiles(*map(Interval, (0.111, 0.222, 0.333, 0.444)))
    overall = replace(rows[0].figures.overall, response_s=waited, ttft_s=waited, icl_s=waited)
    rows = [replace(row, figures=replace(row.figures, overall=overall)) for row in rows]
    lines = [" ".join(line.split()) for line in on_terminal(simulation(rows)).splitlines()]
    assert sum(line.count("0.222 0.333 0.444") for line in lines) == 6


def test_a_table_of_the_page_has_no_column_without_a_number() -> None:
    page = render(
        serving_report(
            serving_run({"label": "a"}), simulation([simulated("a", 16, 0, 0, 0)]), [], []
        )
    )
    assert "## Server (modelled)" in page
    assert "Energy and cost" not in page
    assert "estimated / true time" not in page


def test_a_range_whose_ends_read_alike_is_said_once() -> None:
    condition = {"series": "a", "devices": 16, "slo": "2", **POINT}
    end = FigureRange(
        **condition,
        ends={},
        throughput=(90.0, 110.0),
        violation_rate=(0.0, 0.0001),
        against="a",
        throughput_ratio=None,
    )
    (line,) = derived_range(simulation([], [end]))
    assert line.endswith(
        "at 16 devices: a 90.0 to 110 tokens/s with 0.0% late. One seed was run at each end."
    )
    (line,) = derived_range(simulation([], [replace(end, violation_rate=(0.0, 0.1))]))
    assert "with 0.0% to 10.0% late. One seed" in line


@pytest.mark.parametrize(
    ("slo", "words"),
    [
        ("class-4", "8 tokens/s"),
        ("4", "8 tokens/s"),
        ("7.5/s", "7.5 tokens/s"),
        ("8tok/s", "8 tokens/s"),
        ("8 tokens/s", "8 tokens/s"),
        ("8/s:1", "8 tokens/s"),
        ("1:0.25,7.5/s:0.75", "2 tokens/s for 25%, 7.5 tokens/s for 75%"),
    ],
)
def test_a_promise_is_said_in_tokens_per_second(slo: str, words: str) -> None:
    assert slo_in_words(slo) == words


@pytest.mark.parametrize("name", ["5", "class-5", "0/s", "x/s", "7.5", "tok/s", "-1/s", "8 tok"])
def test_what_is_no_speed(name: str) -> None:
    assert speed_of(name) is None


def test_a_device_that_is_taken_to_be_too_fast_is_said_first() -> None:
    fine = deployment_description(name="one")
    origin = "published; IMPOSSIBLE: faster than its device can be; SLOW: 6 times"
    verifier = dataclasses.replace(fine.verifier, device="A100", origin=origin)
    fast = dataclasses.replace(fine, verifier=verifier)
    (line,) = impossible_times(RunDescription(deployments={"one": fast}))
    assert line.startswith(
        "IMPOSSIBLE TIMES: 'one' takes an A100 to be faster than its data sheet allows"
    )
    assert impossible_times(RunDescription(deployment=fine)) == []
    assert impossible_times(RunDescription()) == []


@pytest.mark.parametrize(
    ("name", "is_constant"), [("specedge", True), ("specpipe-published", True), ("wan", False)]
)
def test_a_verifier_whose_batches_take_no_time_bounds_what_many_devices_get(
    name: str, is_constant: bool
) -> None:
    placed = described(load(name))
    lines = constant_steps(RunDescription(command="capacity", deployments={name: placed}))
    assert [line.partition(" takes ")[0] for line in lines] == [
        f"CONSTANT STEPS: the verifier of '{name}'"
    ] * is_constant
    alone = run_document({"command": "bench", "deployment": to_builtins(placed)})
    assert constant_steps(alone) == []
    together = replace(alone, config=replace(alone.config, batch_size=4))
    assert len(constant_steps(together)) == is_constant


def series(method: str, submitted: float, acceptance: str | None = None) -> JsonObject:
    return {
        "label": "edge",
        "method": method,
        "acceptance": acceptance,
        "typical": {"submitted": submitted, "longest": 8},
    }


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            series("wisp", 7.97),
            ["FIXED LENGTH: edge: wisp drafts 8 tokens in every round here, as fixed-k:k=8 does."],
        ),
        (series("wisp", 7.5), []),
        (series("fixed-k:k=8", 8.0), []),
        (series("wisp", 8.0, "iid:alpha=0.8,length=8"), []),
    ],
)
def test_a_rule_that_never_stops_is_called_a_fixed_length(
    entry: dict[str, object], words: list[str]
) -> None:
    assert acceptance_cautions(serving_run(entry, models={"target": {"name": "smollm2"}})) == words


def test_the_acceptance_of_the_toy_pair_is_said_beside_other_models_times() -> None:
    toy = {"target": {"name": "bundled/target"}}
    modelled = {"models": toy, "time_kind": "modelled"}
    assert setting_cautions(RunDescription.read(modelled))[-1] == TOY_PAIR
    assert "TOY PAIR" not in str(
        setting_cautions(RunDescription.read({**modelled, "time_kind": "measured"}))
    )
    named = {
        **series("fixed-k", 4.0, "trace.parquet"),
        "recorded": {"models": toy, "dataset": None},
    }
    assert acceptance_cautions(serving_run(named, named)) == [TOY_PAIR]
    # Of a trace that was recorded for the run, its setting tells.
    assert acceptance_cautions(serving_run({**named, "acceptance": None})) == []


def test_a_named_trace_gives_the_cautions_that_a_benchmark_of_its_method_gives() -> None:
    predictor = {"threshold": 0.0, "max_draft": 8, "deployment": "local"}
    facts = {
        "recorded": {"models": {}, "dataset": {"count": 120}},
        "uses": {"predictor": predictor},
        "seen_prompts": 6,
        "colocated_ratio": 0.8,
    }
    edge = {**series("wisp", 8.0, "trace.parquet"), "deployment": "wan", **facts}
    wan = load("wan")
    assert wan
    deployments = {"wan": describe(wan)}
    *lines, server_only = acceptance_cautions(serving_run(edge, deployments=deployments))
    # No line says again that the length is fixed.
    assert lines == [
        "SEEN PROMPTS: the predictor or the head of wisp was trained on 6 of these 120 prompts; record other prompts "
        "to judge it.",
        "FIXED LENGTH: the predictor of wisp lets every token pass (threshold 0), so that it drafts as fixed-k:k=8 "
        "does.",
        "OTHER DEPLOYMENT: the predictor of wisp was tuned for 'local', but time is that of 'wan'.",
    ]
    words = (
        "SERVER-ONLY IS FASTER for a request that has the server to itself: 1.25x (edge) as fast"
    )
    assert server_only.startswith(words)
    assert (
        acceptance_cautions(serving_run({**edge, "colocated_ratio": 1.2}, deployments=deployments))
        == lines
    )


def test_the_server_alone_is_held_against_every_series_that_drafts_at_the_edge() -> None:
    one = {**series("fixed-k", 4.0, "trace.parquet"), "deployment": "wan", "label": "one"}
    run = serving_run(
        {**one, "colocated_ratio": 0.8},
        {**one, "label": "two", "colocated_ratio": 0.5},
        {**one, "label": "near", "colocated_ratio": 1.25},
        {**one, "label": "plain"},
    )
    (line,) = (line for line in acceptance_cautions(run) if line.startswith("SERVER-ONLY"))
    assert "1.25x (one), 2.00x (two), 0.800x (near) as fast with the draft model there" in line


def test_a_search_without_plain_decoding_says_how_to_have_it() -> None:
    found = CapacitySummary(rule=CapacityRule(), axes={}, rows=[], guards=[], ranges=[])
    drafting = {**series("fixed-k", 4.0, "trace.parquet"), "drafting": "edge"}
    (line,) = plain_note(serving_run(drafting), found)
    assert "--method autoregressive" in line
    plain = {**drafting, "label": "plain", "drafting": "none"}
    assert plain_note(serving_run(drafting, plain), found) == []


def test_autoregressive_decoding_beside_other_methods_is_served_without_drafts() -> None:
    settings = ServingSettings(
        method=("fixed-k:k=4", "margin", "autoregressive"),
        deployment=("phone",),
        acceptance=("qwen2.5-coder",),
        recording=RecordingSettings(),
    )
    assert [(one.system, one.method) for one in settings.series()] == [
        ("wisp", "fixed-k:k=4"),
        ("wisp", "margin"),
        ("centralized", "autoregressive"),
    ]
    assert settings.series()[-1].label == "centralized, prefill-first, autoregressive"


def test_a_single_system_with_another_method_than_its_own_is_called_by_both() -> None:
    assert _labels([("wisp", "fcfs", "fixed-k", "a", "wan", "1", "r")]) == ["wisp, fixed-k"]
    assert _labels([("wisp", "fcfs", systems.get("wisp").method, "a", "wan", "1", "r")]) == ["wisp"]


def test_a_simulation_shows_no_table_wider_than_a_page_before_it_is_opened() -> None:
    summary = simulation(
        [simulated("wisp", 16, 0.0, 0.1, 0.2), simulated("sled", 16, 0.2, 0.3, 0.4)]
    )
    blocks = serving_report(serving_run(seeds=5), summary, [], []).blocks
    results = blocks[: blocks.index(Heading("Systems"))]
    assert max(len(block.columns) for block in results if isinstance(block, Table)) == PAGE_COLUMNS
