"""Experiments of the papers: what they state, how inputs are replace_input, and what is said of the outcome."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import error_line, read_object, skit_here
from documents import ROOT
from msgspec import structs
from rich.console import Console
from study_pages import assert_marks_are_rendered

from specbench_kit import api
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import OptionValues
from specbench_kit.core.slo_names import CLASSES
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.models.executors.agreement import Agreement
from specbench_kit.papers.comparison import ComparedNumber, compare_published, holds
from specbench_kit.papers.derived import Average, Pick, Ratio, SpanMean, derived_of
from specbench_kit.papers.experiment import (
    BOUNDS,
    GRID,
    ROLES,
    MainClaim,
    Published,
    Steps,
    World,
    build_experiment,
    experiments,
    find_experiments,
    in_world,
    parse_file,
    series_of,
    worlds,
)
from specbench_kit.papers.figure_row import FigureRow
from specbench_kit.reports.sections.wording import outcome
from specbench_kit.reports.writing.formatting import significant
from specbench_kit.studies.reproduction import inputs, laws, report, reproduction, steps, training
from specbench_kit.studies.reproduction.averages import over_seeds
from specbench_kit.studies.reproduction.decoding import (
    AN_SLO,
    DecodingExperiment,
    bench,
    settings_of,
)
from specbench_kit.studies.reproduction.grid import (
    GridRows,
    estimated_rows_of,
    parse_changes,
    points_of,
    replace_input,
    rows_of,
)
from specbench_kit.studies.reproduction.inputs import (
    SEEDS,
    DecodedSeries,
    changed_options,
    option_names,
)
from specbench_kit.studies.reproduction.laws import (
    acceptance_after_filter,
    acceptance_length_at,
    acceptance_length_sd_at,
    acceptance_of_chain,
    joint_prefill_by_data_sheet,
    joint_prefill_by_profile,
    law,
    pipeline_s,
    pipeline_speedup,
    round_rate,
    sampling_slowdown_percent,
    speedup,
    stage_gib,
    top_token_frequency,
)
from specbench_kit.studies.reproduction.reproduction import (
    COMMANDS,
    find_command,
    outcome_of,
)
from specbench_kit.studies.reproduction.wording import (
    ReproducedExperiment,
    effect_in_words,
    effects_compared,
    main_claim,
    metric_in_words,
    published,
    role,
    totals,
    verdict,
)
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.serving_run import compute_shares, fewer_violations
from specbench_kit.studies.serving.settings import ServingSettings

ALL = experiments()

NO_CLAIM = MainClaim("", "", ())


@pytest.mark.parametrize("name", ALL)
def test_an_experiment_says_what_is_assumed_and_where_it_would_lead(name: str) -> None:
    experiment = ALL[name]
    assert experiment.command in COMMANDS
    assert set(experiment.options) <= option_names(experiment.command) | GRID
    assert experiment.published
    assert all(assumed.value and assumed.effect.endswith(".") for assumed in experiment.assumed)
    assert len({assumed.name for assumed in experiment.assumed}) == len(experiment.assumed)


@pytest.mark.parametrize(
    "name", [name for name, experiment in ALL.items() if experiment.command in ("bench", "law")]
)
def test_published_numbers_stand_beside_a_series(name: str) -> None:
    experiment = ALL[name]
    labels = {
        *experiment.options["series"],
        *(label for kind in GRID for label in experiment.options.get(kind, ())),
    }
    assert {published.series for published in experiment.published} <= labels


def numbers(name: str) -> dict[tuple[str, str], float | None]:
    return {(number.series, number.metric): number.value for number in ALL[name].published}


def test_pinned_numbers_of_the_papers() -> None:
    assert numbers("adaspec/table-2")["AdaSpec, trace 1", "value"] == 1.73
    assert numbers("specedge/figure-11")["specedge, 15 ms", "tpot_mean"] == 0.03647
    assert numbers("specpipe/section-4-2")["specpipe", "tpot_mean"] == 0.05467
    table_2 = {
        (number.series, number.where["slo"]): number.value
        for number in ALL["wisp/table-2"].published
    }
    assert [table_2["algorithm 1, late lane", slo] for slo in CLASSES] == [164, 142, 103, 86]
    assert [table_2["centralized", slo] for slo in CLASSES] == [97, 80, 54, 41]
    assert [table_2["sled", slo] for slo in CLASSES] == [83, 42, 27, 21]


def test_experiments_are_found_by_name_paper_and_all() -> None:
    assert [experiment.name for experiment in find_experiments("wisp/table-2")] == ["wisp/table-2"]
    assert {experiment.paper for experiment in find_experiments("specedge")} == {"specedge"}
    assert len(find_experiments("all")) == len(ALL)
    with pytest.raises(
        SkitError, match=r"unknown experiment 'wisp/tabel-2' \(did you mean 'wisp/table-2'"
    ):
        find_experiments("wisp/tabel-2")


def test_an_input_is_moved_wherever_it_stands() -> None:
    options: dict[str, Any] = {
        "acceptance": ["iid:alpha=0.7,length=8", "iid:alpha=0.7,length=0"],
        "slo": ["1", "2"],
        "kv_tokens": "22000",
        "series": {
            "a": {"method": "server-tree:depth=7", "drafted": 3},
            "b": {"method": "x", "drafted": 4},
        },
    }
    assert (
        replace_input(options, "acceptance.length", 6)["acceptance"]
        == ["iid:alpha=0.7,length=6"] * 2
    )
    assert replace_input(options, "slo", 3)["slo"] == ["3"]
    assert replace_input(options, "kv_tokens", 15)["kv_tokens"] == "15"
    assert replace_input(options, "link.rtt_s", 0.05)["replaced"] == ["link.rtt_s=0.05"]
    assert (
        replace_input(options, "series.a.method.depth", 5)["series"]["a"]["method"]
        == "server-tree:depth=5"
    )
    assert [
        entry["drafted"]
        for entry in replace_input(options, "series.*.drafted", 9)["series"].values()
    ] == [9, 9]
    named = {"series": {"14B/0.6B": {"levels": 4}}}
    assert replace_input(named, "series.14B/0.6B.levels", 5)["series"]["14B/0.6B"] == {"levels": 5}
    with pytest.raises(
        SkitError, match=r"series\.c\.drafted: write series\.NAME\.INPUT, .*the series: a, b"
    ):
        replace_input(options, "series.c.drafted", 5)
    assert replace_input(options, "series.a.link.rtt_s", 1)["series"]["a"]["replaced"] == [
        "link.rtt_s=1"
    ]
    assert options["slo"] == ["1", "2"]


def compared(
    goal: float = 0.1, **pairs: tuple[dict[str, Any], float | None]
) -> ReproducedExperiment:
    """Return the experiment that a report reads, with published numbers that each have a simulated one."""
    tables = [
        {"series": series, "metric": "value", "role": "predicted", **table}
        for series, (table, _) in pairs.items()
    ]
    content = {
        "command": "law",
        "summary": "",
        "source": "",
        "options": {},
        "goal": goal,
        "published": tables,
    }
    experiment = build_experiment("x/y", {**content, "prevented": "No lengths."})
    rows = [
        FigureRow(series, {}, {"value": {"mean": mean}})
        for series, (_, mean) in pairs.items()
        if mean is not None
    ]
    return outcome_of(experiment, compare_published(experiment, rows))


def test_the_verdict_is_one_of_four_sentences() -> None:
    near_numbers = {"a": ({"value": 1.0}, 0.95), "b": ({"value": 1.0}, 1.02), "c": ({}, 3.0)}
    assert (
        verdict(compared(**near_numbers))
        == "Predicted: all 2 predictions come out (numbers within 5%)."
    )
    assert verdict(compared(**{**near_numbers, "a": ({"value": 1.0}, 1.4)})) == (
        "Predicted in part: 1 of 2 predictions come out. A number comes out within 10%; the farthest is 'a': 1.40 "
        "where 1.000 is printed, 1.40x. No lengths."
    )
    assert verdict(compared(a=({"value": 1.0}, 1.4))) == (
        "Not predicted: 0 of 1 predictions come out. A number comes out within 10%; the farthest is 'a': 1.40 "
        "where 1.000 is printed, 1.40x. No lengths."
    )
    assert (
        verdict(compared(a=({}, 1.0)))
        == "Nothing is predicted here, and the text of the paper has no number."
    )


def test_only_predictions_count() -> None:
    entries = {
        "put in": ({"value": 1.0, "role": "input"}, 1.0),
        "met": ({"value": 1.0, "role": "fitted", "fitted_to": "the pair"}, 1.2),
        "follows": ({"value": 1.0, "role": "identity"}, 1.0),
    }
    result = compared(**entries)
    assert (result.within, result.compared) == (0, 0)
    assert [result.roles[role].within for role in ("input", "fitted", "identity")] == [1, 0, 1]
    assert verdict(result) == (
        "Nothing is predicted here: 1 input (1 within the goal), 1 fitted (0 within the goal), 1 identity (1 within "
        "the goal)."
    )
    result = compared(**entries, told=({"value": 2.0}, 2.0))
    assert (result.within, result.compared) == (1, 1)
    assert totals([result, result]) == "2 of 2 predictions come out"


def test_a_gain_is_scored_on_the_gain() -> None:
    """A gain of 50% of which nothing is found is not within 10% of 1.5x; one of 7% is compared in points."""
    half, nothing = ({"value": 1.5, "null": 1}, 1.46), ({"value": 1.5, "null": 1}, 1.0)
    result = compared(half=half, nothing=nothing)
    assert [pair.score for pair in result.published] == pytest.approx([0.92, 0.0])
    assert (result.within, result.compared) == (1, 2)
    assert effects_compared(result) == (
        "A number that is 1 without any effect is judged by what exceeds 1, the share of the effect: nothing has 0.00 "
        "of 0.500, no gain found."
    )
    assert effects_compared(compared(plain=({"value": 1.5}, 1.4))) == ""
    small = {"value": 1.07, "null": 1, "points": 0.02}
    result = compared(small=(small, 1.085), none=(small, 1.0))
    assert [pair.within for pair in result.published] == [True, False]


def test_what_no_effect_would_meet_is_not_counted() -> None:
    result = compared(
        wide=({"value": 1.02, "null": 1, "points": 0.03}, 1.02),
        bound=({"at_least": 0, "null": 0}, 0.5),
        real=({"at_least": 0.5, "null": 0}, 0.6),
    )
    assert [pair.counted for pair in result.published] == [False, False, True]
    assert verdict(result) == (
        "Predicted: the one prediction comes out (what is stated as a bound holds). Not counted: 2 that a result "
        "without any effect would meet too."
    )


def test_a_number_printed_as_it_would_be_without_any_effect_is_not_counted() -> None:
    """A ratio of 1 is no effect itself; a rate is none if another system's printed rate would be as near."""
    result = compared(
        same=({"value": 1.0, "null": 1}, 1.01),
        rate=({"value": 0.98, "unaffected": 0.984}, 1.0),
        kept=({"value": 0.0, "unaffected": 0.0, "points": 0.02}, 1.0),
        changed=({"value": 0.82, "unaffected": 0.94}, 0.8),
    )
    assert [pair.counted for pair in result.published] == [False, False, False, True]
    assert [pair.within for pair in result.published] == [True, True, False, True]
    assert (result.within, result.compared) == (1, 1)
    assert verdict(result).endswith(
        "Not counted: 3 that a result without any effect would meet too (1 of them missed here)."
    )


def test_no_counted_ratio_of_two_systems_would_be_met_by_equal_ones() -> None:
    """What a ratio is without any effect goes unsaid only where equal systems would be far from what is printed."""
    for name, experiment in ALL.items():
        ratios = [
            number
            for number in experiment.published
            if number.metric == "ratio" and number.value is not None
        ]
        rows = [
            FigureRow(number.series, number.where, {"ratio": {"mean": 1.0}}) for number in ratios
        ]
        equal = compare_published(replace(experiment, published=tuple(ratios)), rows)
        assert [pair.series for pair in equal if pair.counted and pair.within] == [], name
    figure_4 = compare_published(
        ALL["wisp/figure-4"], rows_of(law, ALL["wisp/figure-4"].options, lambda *_: None)
    )
    assert [pair.counted for pair in figure_4] == [False] * 8


def test_a_number_that_is_tried_under_two_assumptions_counts_once() -> None:
    """It comes out if it does under both; under one it is named and does not count."""
    tables = [
        {"series": series, "metric": "value", "role": "predicted", kind: number}
        for series in ("early", "late")
        for kind, number in (("value", 5.0), ("at_most", 4.0))
    ] + [{"series": "other", "metric": "value", "role": "predicted", "value": 5.0}]
    content = {"command": "law", "summary": "", "source": "", "options": {}, "published": tables}
    experiment = build_experiment("x/y", {**content, "variants": [["early", "late"]]})
    counts = {}
    for late in (5.2, 3.0):
        rows = [
            FigureRow(name, {}, {"value": {"mean": mean}})
            for name, mean in (("early", 5.1), ("late", late), ("other", 5))
        ]
        result = outcome_of(experiment, compare_published(experiment, rows))
        counts[late] = (result.within, result.compared, result.roles["predicted"].compared)
    # Of three printed numbers `other` comes out, and 5 while both assumptions give about as much.
    assert counts == {5.2: (2, 3, 3), 3.0: (1, 3, 3)}
    assert verdict(result).endswith(
        "Bounds that do not hold: value, at most 4.000: ours 5.10 for 'early'. Under one assumption only, which does "
        "not count, comes out: value, 5.000 ('early'); value, at most 4.000 ('late')."
    )
    assert role(result.published[0], result.variants) == "predicted, 1 of 2 assumptions"
    with pytest.raises(SkitError, match="x/y: variants without a published number: never"):
        build_experiment("x/y", {**content, "variants": [["early", "never"]]})


def test_two_assumptions_of_specpipes_pipeline_are_four_printed_numbers() -> None:
    experiment = ALL["specpipe/ranges"]
    result = outcome_of(
        experiment, compare_published(experiment, rows_of(law, experiment.options, lambda *_: None))
    )
    assert sorted(number.compared[0].value for number in result.predictions()) == [
        3.89,
        4.19,
        5.23,
        5.53,
    ]


def test_a_ratio_with_a_fitted_side_is_half_fitted_and_not_counted() -> None:
    tables = [
        {"series": "a", "metric": "rate", "value": 4.0, "role": "fitted", "fitted_to": "60 ms"},
        {"series": "b", "metric": "rate", "value": 2.0, "role": "predicted"},
        {"series": "a over b", "metric": "ratio", "value": 2.0, "role": "predicted"},
        {"series": "b over b", "metric": "ratio", "value": 1.0, "role": "predicted"},
    ]
    ratios = {
        "a over b": {"of": "a/rate", "over": "b/rate"},
        "b over b": {"of": "b/rate", "over": ["b/rate"]},
    }
    content = {
        "command": "bench",
        "summary": "",
        "source": "",
        "options": {"ratios": ratios},
        "published": tables,
    }
    experiment = build_experiment("x/y", content)
    assert [number.role for number in experiment.published] == [
        "fitted",
        "predicted",
        "half fitted",
        "predicted",
    ]
    assert role(compare_published(experiment, [])[2]) == "half fitted: 60 ms, in the numerator"
    rows = [FigureRow("a over b", {}, {"ratio": {"mean": 2.0}})]
    result = outcome_of(experiment, compare_published(experiment, rows))
    assert (result.compared, result.roles["half fitted"].within) == (0, 1)
    of_table_1 = {
        number.series: number.role
        for number in ALL["specedge/table-1"].published
        if number.metric == "ratio"
    }
    assert of_table_1 == {
        "gain, 32B": "fitted",
        "gain per dollar, 32B": "fitted",
        "gain, 14B": "half fitted",
        "gain per dollar, 14B": "half fitted",
    }


def test_the_farthest_names_the_miss_that_has_no_ratio_too() -> None:
    result = compared(
        none=({"value": 0.0, "points": 0.02}, 1.0),
        few=({"value": 0.1, "points": 0.02}, 0.9),
        near=({"value": 1.0}, 1.0),
    )
    assert verdict(result) == (
        "Predicted in part: 1 of 3 predictions come out. A number comes out within 10%, or within the points that are "
        "stated for small ones; the farthest is 'few': 0.900 where 0.1000 is printed, 9.00x; the farthest in points "
        "is 'none': 1.00 where 0.000 is printed. No lengths."
    )
    assert totals([result]) == "1 of 3 predictions come out"


def test_the_ratio_is_of_the_numbers_and_the_share_of_the_effect() -> None:
    result = compared(
        more=({"value": 1.16, "null": 1}, 1.608),
        none=({"value": 1.12, "null": 1}, 1.0),
        slower=({"value": 0.89, "null": 1}, 1.1),
        plain=({"value": 2.0}, 1.0),
    )
    assert [outcome(pair) for pair in result.published] == ["1.39x", "0.893x", "1.24x", "0.500x"]
    shares = [effect_in_words(pair) for pair in result.published]
    assert shares == ["380% of the gain", "no gain found", "no effect found", ""]


def test_every_published_number_says_what_it_is() -> None:
    for table, message in (
        ({}, "the role is one of input, fitted, identity, predicted, not ''"),
        ({"role": "guessed"}, "not 'guessed'"),
        ({"role": "fitted"}, "a fitted number, and no other, says in fitted_to what was chosen"),
        ({"role": "identity", "fitted_to": "x"}, "a fitted number, and no other"),
    ):
        content = {"published": [{"series": "a", "metric": "value", "value": 1.0, **table}]}
        with pytest.raises(SkitError, match=message):
            build_experiment(
                "x/y", {"command": "law", "summary": "", "source": "", "options": {}, **content}
            )
    assert {number.role for experiment in ALL.values() for number in experiment.published} == set(
        ROLES
    )


def test_a_figure_without_a_name_of_its_own_says_what_was_measured() -> None:
    nameless = [
        (name, n)
        for name, experiment in ALL.items()
        for n in experiment.published
        if n.metric == "value"
    ]
    assert [name for name, number in nameless if not number.measured] == []
    words = {metric_in_words(number) for name, number in nameless if name == "specedge/table-3"}
    assert words == {"time between tokens (s)", "speedup over plain decoding"}
    assert metric_in_words(Published("", "value", None)) == "value"


def test_no_number_of_a_tables_other_cells_is_called_predicted() -> None:
    for name in ("specedge/prices", "specedge/table-2", "wisp/table-4"):
        assert {number.role for number in ALL[name].published} == {"identity"}


def test_a_stated_bound_holds_or_does_not() -> None:
    lower, upper = (Published("a", "value", 0.5, bound=bound) for bound in BOUNDS)
    assert (holds(lower, 0.5), holds(lower, 0.4), holds(upper, 0.4), holds(upper, None)) == (
        True,
        False,
        True,
        None,
    )
    result = compared(above=({"at_most": 2}, 3.0), near=({"value": 1.0}, 1.02))
    assert (result.published[0].holds, result.published[0].simulated_over_published) == (
        False,
        None,
    )
    assert verdict(result) == (
        "Predicted in part: 1 of 2 predictions come out. Bounds that do not hold: 'above', at most 2.000: ours 3.00. "
        "No lengths."
    )


def options_in_world(content: dict[str, object], world: World) -> OptionValues:
    """Return the options of an experiment with those of its paper's world."""
    file = parse_file("x/y", {"summary": "", "source": "", **content})
    return in_world("x/y", file, world).options


def test_a_wrong_key_of_an_experiment_is_named() -> None:
    content = {"command": "law", "summary": "", "source": "", "options": {}}
    for wrong, message in (
        ({"gaol": 0.2}, r"x/y: gaol is unknown \(did you mean 'goal'\?\)"),
        ({"goal": "0.2"}, 'x/y: goal must be a number, not "0.2"'),
        ({"published": [{"series": "a"}]}, r"x/y: published\[0\].metric is missing"),
    ):
        with pytest.raises(SkitError, match=message):
            build_experiment("x/y", {**content, **wrong})


def test_an_experiment_changes_nothing_of_its_papers_world_unsaid() -> None:
    world = World(frozenset({"simulate"}), {"prompt_tokens": 450, "seeds": 5}, (), NO_CLAIM, ())
    content = {"command": "simulate", "options": {"prompt_tokens": 250}}
    with pytest.raises(SkitError, match="x/y changes prompt_tokens of the paper's world unsaid"):
        options_in_world(content, world)
    said = {**content, "differs": {"prompt_tokens": "Shorter ones."}}
    assert options_in_world(said, world) == {"prompt_tokens": 250, "seeds": 5}
    assert options_in_world({**content, "command": "law"}, world) == {"prompt_tokens": 250}


def test_wisp_experiments_share_one_acceptance_and_longest_draft() -> None:
    served = [
        experiment
        for experiment in find_experiments("wisp")
        if experiment.command in ("simulate", "capacity")
    ]
    assert len(served) == 8
    for experiment in served:
        for text in experiment.options["acceptance"]:
            assert (
                text.startswith("iid:alpha=0.7322,length=8") or text == "iid:alpha=0.7322,length=0"
            )


def test_no_scheduler_of_the_kit_stands_for_the_papers_own() -> None:
    """Numbers of WISP are compared with Algorithm 1; what the kit's scheduler gives is marked as fitted."""
    for experiment in find_experiments("wisp"):
        schedulers = experiment.options.get("scheduler", [])
        labels = dict(zip(experiment.options.get("label", []), schedulers, strict=False))
        if schedulers and experiment.steps is None:
            assert "wisp-paper:late_lane=true,guard_s=0.25" in schedulers
            assert "wisp-paper" in schedulers
        for number in experiment.published:
            if "promise" in labels.get(number.series, number.series):
                assert "wisp-promise" in number.series
                assert number.role == "fitted"


def test_every_simulated_experiment_has_an_interval_over_five_seeds() -> None:
    for experiment in ALL.values():
        if experiment.command not in ("law", "profile"):
            assert experiment.options.get("seeds", SEEDS) >= 5, experiment.name


def test_every_serving_experiment_of_wisp_shows_four_schedulers_side_by_side() -> None:
    """None may be left to the system, whose own is the kit's scheduler."""
    four = {"fcfs", "wisp-paper", "wisp-paper:late_lane=true,guard_s=0.25", "wisp-promise"}
    for experiment in find_experiments("wisp"):
        if experiment.command in ("simulate", "capacity") and experiment.steps is None:
            assert four <= set(experiment.options["scheduler"]), experiment.name
            assert any("promise" in label for label in experiment.options["label"])


def test_one_pair_drafts_wherever_a_pair_of_models_decodes() -> None:
    """A series of SpecEdge or SpecPipe writes the name of the paper's pair, never a pair of its own."""
    content = {"command": "bench", "options": {"series": {"a": {"draft": "ranks=0.9"}}}}
    world = worlds()["specedge"]
    with pytest.raises(SkitError, match="x/y has its own draft for a, unlike the paper's world"):
        options_in_world(content, world)
    named = {"command": "bench", "options": {"series": {"a": {"draft": "@32B/1.7B"}}}}
    drafts = series_of(options_in_world(named, world))["a"]
    assert drafts["draft"] == world.names["32B/1.7B"]
    with pytest.raises(
        SkitError, match=r"the paper's world has no 32B/1.6B \(did you mean '32B/1.7B'\?\)"
    ):
        options_in_world({**named, "options": {"series": {"a": {"draft": "@32B/1.6B"}}}}, world)


def test_lists_and_tables_of_an_experiment_name_the_worlds_values_too() -> None:
    named = frozenset({"acceptance"})
    world = World(
        frozenset({"simulate"}),
        {},
        (),
        NO_CLAIM,
        (),
        names={"pair": "iid:alpha=0.6,length=8"},
        named=named,
    )
    content = {
        "command": "simulate",
        "options": {"acceptance": ["@pair", "iid:alpha=0.7,length=8"]},
    }
    with pytest.raises(
        SkitError, match="x/y has its own acceptance for its systems, unlike the paper's world"
    ):
        options_in_world(content, world)
    completed = options_in_world({**content, "differs": {"acceptance": "The second pair."}}, world)
    assert completed["acceptance"] == [
        "iid:alpha=0.6,length=8",
        "iid:alpha=0.7,length=8",
    ]
    options = {"acceptance": ["@pair"], "slo_of": {"acceptance": "@pair", "quantile": 0.9}}
    same_world = options_in_world({"command": "simulate", "options": options}, world)
    assert same_world["slo_of"] == {"acceptance": "iid:alpha=0.6,length=8", "quantile": 0.9}


def test_both_sides_of_specedge_have_one_pair_and_a_device_each() -> None:
    for name in ("table-1", "figure-11", "figure-9"):
        series = ALL[f"specedge/{name}"].options["series"]
        server = {
            entry["draft"]: entry["replaced"]
            for entry in series.values()
            if "server-tree" in entry["method"]
        }
        edge = {entry["draft"] for entry in series.values() if "specedge" in entry["method"]}
        assert edge == set(server)
        for replaced in server.values():
            assert "drafter.coefficients.c_s=0.0167" in replaced


def test_a_list_of_inputs_is_given_as_toml_or_entry_by_entry() -> None:
    specs = ["fcfs", "wisp-paper:late_lane=true,guard_s=0.25"]
    written = 'scheduler=["fcfs", "wisp-paper:late_lane=true,guard_s=0.25"]'
    assert (
        parse_changes([written])
        == parse_changes([f"scheduler={spec}" for spec in specs])
        == {"scheduler": specs}
    )
    assert parse_changes(["seeds=5", "devices=[40, 80]"]) == {"seeds": 5, "devices": [40, 80]}
    options = {"scheduler": ["edf"], "slo": ["1"]}
    assert replace_input(options, "scheduler", specs)["scheduler"] == specs
    assert replace_input(options, "slo", [2, 4])["slo"] == ["2", "4"]
    with pytest.raises(SkitError, match="a list is written as"):
        parse_changes(["scheduler=[fcfs]"])


def test_figures_of_several_seeds_have_an_interval() -> None:
    """Rows are joined by series and point; one that a seed does not have is left out of its figure."""
    rows_by_seed = [
        [
            FigureRow(
                "a",
                {"n": 1},
                {"x_rate": {"mean": 0.0}, "t": {"mean": {"mean": 2.0}}, "of": [1, 2]},
            )
        ],
        [
            FigureRow("a", {"n": 1}, {"x_rate": {"mean": 0.2}, "t": {"mean": {"mean": 4.0}}}),
            FigureRow("b", {}, {}),
        ],
    ]
    assert over_seeds(rows_by_seed[:1]) == rows_by_seed[0]
    joined, only_once = over_seeds(rows_by_seed)
    assert (joined.series, joined.point) == ("a", {"n": 1})
    rate, time = joined.figure("x_rate"), joined.figure("t.mean")
    assert (rate["mean"], rate["low"], rate["high"]) == (
        pytest.approx(0.1),
        0.0,
        1.0,
    )  # cut where a rate ends
    assert time["mean"] == 3.0
    assert time["low"] < 3.0 < time["high"]
    assert only_once == FigureRow("b", {}, {})


def test_derived_figures_are_computed_seed_by_seed() -> None:
    """The mean of the ratios 2 and 3, and not the ratio of the means, 8 / 3."""

    def command(options: Any, _report: Any) -> Any:
        numerator, denominator = ((2.0, 1.0), (6.0, 2.0))[options["seed"]]
        return [
            FigureRow("a", {}, {"s": {"mean": numerator}}),
            FigureRow("b", {}, {"s": {"mean": denominator}}),
        ]

    options = {"ratios": {"gain": {"of": "a/s", "over": "b/s"}}}
    rows = estimated_rows_of(command, options, lambda *_: None, seeds=2)
    (gain,) = (row.figure("ratio") for row in rows if row.series == "gain")
    assert gain["mean"] == 2.5
    assert gain["low"] < 2.5 < gain["high"]


def test_arithmetic_loads_no_decoder() -> None:
    """An experiment of pure arithmetic answers at once, because it does not wait for torch."""
    code = (
        "import sys; "
        "from specbench_kit.studies.reproduction.reproduction import find_command; find_command('law'); "
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(callable(find_command(name)) for name in COMMANDS)


def test_a_controller_that_ends_a_chain() -> None:
    """Half of the tokens are right and no judgement is wrong: drafts end at the first wrong token, never sent."""
    assert acceptance_of_chain(0.75, 1.0, 1.0, 1, sent=True) == 1
    assert acceptance_of_chain(0.75, 1.0, 1.0, 1, sent=False) == pytest.approx(0.75)
    # Nothing is held back: the share without a predictor.
    assert acceptance_of_chain(0.31, 1.0, 0.0, 8, sent=True) == pytest.approx(0.31, abs=1e-6)


def test_the_speedup_of_a_pipeline() -> None:
    assert pipeline_speedup(8, 1.0) == 8
    assert pipeline_speedup(8, 0.95) == pytest.approx(1 / pipeline_s(1.0, 8, 0.95))
    assert pipeline_speedup(8, 0.95, more=0.1) == pytest.approx(
        1 / pipeline_s(1.0, 8, 0.95, 0.1 / 8)
    )
    assert pipeline_speedup(8, 1.0, slowest=2.0) == 4


def test_a_page_begins_with_its_claims_and_names_what_is_not_compared(tmp_path: Path) -> None:
    interval = {"mean": 1.4, "low": 1.2, "high": 2.6}
    experiment = build_experiment(
        "wisp/x",
        {
            "command": "law",
            "summary": "things",
            "source": "S",
            "options": {},
            "published": [
                {"series": "a", "metric": "value", "value": 2.5, "role": "predicted"},
                {"series": "b", "metric": "value", "value": 1.0, "role": "identity"},
            ],
        },
    )
    rows = [
        FigureRow("a", {}, {"value": interval}),
        FigureRow("b", {}, {"value": {"mean": 1.0}}),
    ]
    result = outcome_of(experiment, compare_published(experiment, rows))
    report.write(tmp_path, [result])
    page = (tmp_path / "wisp.md").read_text()
    first_table = page[page.index("| experiment") :].split("\n\n", 1)[0]
    assert (
        first_table.splitlines()[0]
        == "| experiment | claim | kind | published | ours (95% interval) | verdict |"
    )
    assert (
        "| x | a: value | predicted | 2.500 | 1.400 (1.20 to 2.60) | not met: 0.560x, though inside our interval |"
        in (first_table)
    )
    assert "| x | things | identity | 1 number | below | 1 of 1 within the goal |" in first_table
    assert "| not compared | because |" in page
    assert page.index("plots/wisp-predictions.svg") < page.index("| experiment")
    assert (tmp_path / "plots" / "wisp-predictions.svg").is_file()


def test_a_lead_over_another_system_is_a_claim_that_follows_from_the_numbers(
    tmp_path: Path,
) -> None:
    """Published, the first serves twice as many devices as the second; simulated, one and a half times as many."""
    numbers = {"metric": "capacity", "role": "predicted"}
    experiment = build_experiment(
        "wisp/x",
        {
            "command": "law",
            "summary": "things",
            "source": "S",
            "options": {},
            "against": "a",
            "published": [
                {"series": "a", "value": 20.0, **numbers},
                {"series": "b", "value": 10.0, **numbers},
            ],
        },
    )
    rows = [
        FigureRow(series, {}, {"capacity": {"mean": mean}})
        for series, mean in (("a", 18.0), ("b", 12.0))
    ]
    result = outcome_of(experiment, compare_published(experiment, rows))
    report.write(tmp_path, [result])
    line = "| x | a / b: capacity (devices) | follows from the numbers | 2.00x | 1.50x | not met: 0.750x |"
    assert line in (tmp_path / "wisp.md").read_text()
    index = (tmp_path / "README.md").read_text()
    every_number = index[index.index("## Every number") :]
    assert "| ours / published |" in every_number
    assert "share of the effect" not in every_number, "a column that no number fills"
    # Stars that mark a word in Markdown would stand in a browser as they are.
    page = (tmp_path / "README.html").read_text()
    assert "'fitted' number" in page.replace("&#x27;", "'")
    assert not re.search(r"\*[a-z]", page[page.index("<body") :])


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("figures.classes.2.violation_rate", "share of responses that miss their SLO, class 2"),
        ("figures.overall.tpot_s.mean", "TPOT"),
        ("test.mape", "MAPE, test"),
        ("fitted.c_s", "c, fitted"),
        ("shares.compute-bound.b_compute_s", "share of b, compute, compute-bound"),
        ("acceptance_length", "acceptance length"),
    ],
)
def test_metrics_are_words_with_units(metric: str, words: str) -> None:
    assert metric_in_words(Published("", metric, None)) == words


def test_durations_carry_their_unit_however_short_they_are() -> None:
    assert published(Published("", "coefficients.b_compute_s", 3.45e-8)) == "34.50 ns"
    assert published(Published("", "figures.overall.tpot_s.mean", 0.1234)) == "123.4 ms"
    assert published(Published("", "shares.widths.b_compute_s", 0.7)) == "0.7000"


def test_every_paper_says_what_is_not_compared() -> None:
    for world in worlds().values():
        assert world.not_compared
        assert all(entry.claim and entry.because.endswith(".") for entry in world.not_compared)


def test_laws() -> None:
    assert pipeline_s(8.0, 8, 0.95) == pytest.approx(1.35)
    assert speedup(0, 0, 0.3) == 1
    assert speedup(4, 2, 0.25) == 1.5
    assert round_rate(4.0, 0.3, steps=5, step_s=0.02) == 10
    assert acceptance_after_filter(0.5, 1.0, 0.5) == pytest.approx(2 / 3)
    assert sampling_slowdown_percent(8, 0.9, 0.9, 0.7, 0.6, 0.9, 80) == pytest.approx(0)
    assert sampling_slowdown_percent(8, 0.9, 0.4, 1.0, 0.6, 0.9, 80) == pytest.approx(0)
    weights = (
        8192 * 128 * 144 + 3 * 8192 * 28672
    )  # of a layer: 64 heads, 8 of keys and values, three matrices
    kv = 2 * 8 * 128 * 1024
    assert stage_gib("llama3.1-70b", 2, 0, 1024, 0.0) == pytest.approx(4 * (weights + kv) / 2**30)


def test_a_request_beside_a_prompt_takes_what_its_own_tokens_take() -> None:
    """Table 12 gives the cost of 5 new tokens after 500 next to a prompt of 1,000; by a data sheet it is never zero."""
    alone_s = 1000 * 33.14e-6 + 1000**2 * 34.5e-9 + 14.86e-3
    more_s = 5 * 33.14e-6 + 5 * 505 * 34.5e-9 + 500 * 4.62e-6
    assert joint_prefill_by_profile("wisp-table-12", 1000, 5, 500) == pytest.approx(
        1 + more_s / alone_s
    )
    assert (
        1 < joint_prefill_by_data_sheet("llama2-70b", "a100-80", 2, "float16", 1000, 5, 500) < 1.05
    )


@pytest.mark.parametrize(("top_p", "top_k"), [(0.9, 80), (0.95, 3), (1.0, 2)])
def test_the_likeliest_token_is_drawn_as_often_as_a_sampler_draws_it(
    top_p: float, top_k: int
) -> None:
    """The frequency is a mean over positions; at each, probabilities fall by one factor."""
    sure = torch.tensor(
        [Agreement((0.7,), spread=1.0).chance((position + 0.5) / 1000) for position in range(1000)]
    )
    logits = torch.arange(300) * (1 - sure).clamp(1e-7, 1 - 1e-7).log()[:, None]
    drawn = Sampler(0.6, top_p, top_k).probabilities(logits)[:, 0].mean().item()
    assert top_token_frequency(0.7, 0.6, top_p, top_k) == pytest.approx(drawn, abs=2e-3)


def test_a_deeper_tree_of_the_same_pair_brings_more_tokens() -> None:
    """Levels that are right half the time: 1 + 1/2 + 1/4 + 1/8 tokens; with one level it is a coin on top of one."""
    assert acceptance_length_at(3, 1.5, 1) == pytest.approx(1.875)
    assert acceptance_length_sd_at(1, 1.75, 2) == pytest.approx(0.5)
    with pytest.raises(SkitError, match="1 levels bring 1 to 2 tokens a round, not 3"):
        acceptance_length_at(2, 3, 1)


def test_a_fit_to_undisturbed_times_finds_the_published_coefficients() -> None:
    options = {"seeds": 2, "series": {"table 12": {"profile": "wisp-table-12", "noise_s": 0.0}}}
    (row,) = laws.profile(options, lambda *_: None)
    results = {name: value["mean"] for name, value in row.figures["coefficients"].items()}
    assert results == pytest.approx(
        {"a_s": 33.14e-6, "b_compute_s": 34.5e-9, "b_read_s": 4.62e-6, "c_s": 14.86e-3}
    )
    assert row.figure("test.rmse_s.mean") == pytest.approx(0.0, abs=1e-9)


def test_missed_promises_are_counted_by_class_and_by_what_kept_them() -> None:
    blamed = {"compute_dominant": {"mean": 1.0}, "queue_dominant": {"mean": 3.0}}
    rates = {"fcfs": 0.5, "wisp": 0.2}
    rows = [
        FigureRow(
            name,
            {"devices": 8},
            {
                "figures": {
                    "classes": {"1": {"violation_rate": {"mean": rate}}},
                    "violations": blamed,
                }
            },
        )
        for name, rate in rates.items()
    ]
    (fewer,) = fewer_violations(rows)
    assert (fewer.series, fewer.point) == ("wisp", {"devices": 8})
    assert fewer.figure("classes.1.fewer_violations.mean") == pytest.approx(0.3)
    shares = [entry.figure("compute_share.mean") for entry in compute_shares(rows)]
    assert shares == [0.25, 0.25]


def test_a_predictor_learns_from_a_recorded_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair is surer where it is right, and says so; prompts are those that every machine has."""
    monkeypatch.setenv("SKIT_DATA_DIR", "nowhere")
    series = {"line": {"family": "logistic", "threshold": "balanced"}}
    sizes = {
        "draft": "synthetic:ranks=0.7,spread=1",
        "limit": 40,
        "output_tokens": 24,
        "max_draft": 4,
    }
    examples, line = training.train(
        {"target": "synthetic", "series": series, **sizes}, lambda *_: None
    )
    assert examples.figure("accepted_share.mean") == pytest.approx(0.7, abs=0.06)
    assert examples.figure("correlation.confidence.mean") > 0.2
    assert line.figure("auc.mean") > 0.55
    assert line.figure("latency.over_first.mean") == 1


def test_a_decoded_series_takes_the_time_of_its_deployment() -> None:
    """Every token drafted is right, so a round of four brings five and lasts as long as its parts."""
    series = {"all right": DecodedSeries("fixed-k:k=4", "specedge", "ranks=1.0")}
    (row,) = DecodingExperiment(series=series, requests=1, prompt_tokens=8, output_tokens=51).rows()
    assert row.figure("acceptance_length.mean") == pytest.approx(51 / 11)
    assert row.figure("server_tokens_per_busy_second.mean") == pytest.approx(51 / 11 / 0.0942)


def test_a_grid_of_decoded_series_with_ratios_and_picks() -> None:
    """All drafted tokens are right, so a round of k brings k + 1 of the 31."""
    figure = "right/acceptance_length"
    options = {
        "requests": 1,
        "prompt_tokens": 8,
        "output_tokens": 31,
        "series": {
            "right": {"method": "fixed-k:k=9", "deployment": "specedge", "draft": "ranks=1.0"}
        },
        "over": {"k": {"key": "series.*.method.k", "values": [2, 5]}},
        "ratios": {
            "itself": {"of": figure, "over": figure, "factor": 2.0},
            "5 over 2": {"of": figure, "over": figure, "at": {"k": 5}, "to": {"k": 2}},
        },
        "picks": {"longest": {"of": figure, "pick": "most", "axis": "k"}, "least": {"of": figure}},
    }
    two, five, *derived_rows = rows_of(bench, options, lambda *_: None)
    assert [entry.figure("acceptance_length.mean") for entry in (two, five)] == pytest.approx(
        [31 / 11, 31 / 6]
    )
    mean = {"mean": pytest.approx(11 / 6)}
    assert derived_rows == [
        FigureRow("itself", {"k": 2}, {"ratio": {"mean": 2.0}}),
        FigureRow("itself", {"k": 5}, {"ratio": {"mean": 2.0}}),
        FigureRow("5 over 2", {}, {"ratio": mean}),
        FigureRow("longest", {}, {"value": {"mean": 5.0}}),
        FigureRow("least", {}, {"value": {"mean": pytest.approx(31 / 11)}}),
    ]
    with pytest.raises(SkitError, match=r"no figure left/ratio at \{'k': 2\}"):
        GridRows([FigureRow("right", {"k": 2}, {})]).picks({"x": Pick("left/ratio", at={"k": 2})})


def test_means_over_the_spans_of_a_time_in_which_another_figure_lies() -> None:
    over_time = {"size": [1.0, 12.0, None, 19.0, 20.0], "length": [6.0, 2.0, 9.0, 4.0, 1.0]}
    mean = SpanMean("a/t.length", "t.size", (10, 20))
    rows = [FigureRow("a", {}, {"t": over_time}), FigureRow("b", {}, {})]
    assert GridRows(rows).means({"busy": mean}) == [FigureRow("busy", {}, {"value": {"mean": 3.0}})]


def test_the_least_of_several_figures_over_another_at_each_place() -> None:
    times = {"a": (4.0, 9.0), "b": (6.0, 8.0), "c": (2.0, 2.0)}
    rows = [
        FigureRow(name, {"n": n}, {"s": {"mean": time}})
        for name, series_times in times.items()
        for n, time in enumerate(series_times)
    ]
    results = GridRows(rows).ratios({"gain": Ratio(["a/s", "b/s"], "c/s")})
    assert results == [
        FigureRow("gain", {"n": n}, {"ratio": {"mean": ratio}})
        for n, ratio in enumerate((2.0, 4.0))
    ]


def test_the_average_of_several_figures() -> None:
    rows = [FigureRow(name, {}, {"s": {"mean": mean}}) for name, mean in (("a", 1.0), ("b", 3.0))]
    assert GridRows(rows).averages({"both": Average(["a/s", "b/s"])}) == [
        FigureRow("both", {}, {"value": {"mean": 2.0}})
    ]


def test_axes_have_values_by_name_and_go_for_every_command() -> None:
    axis = {"key": "series.a.accepted", "values": {"few": 1, "many": 3}}
    series = {"a": {"law": "speedup", "drafted": 4, "accepted": 1, "draft_cost": 0.25}}
    rows = rows_of(law, {"series": series, "over": {"which": axis}}, lambda *_: None)
    assert rows == [
        FigureRow("a", {"which": name}, {"value": {"mean": x}})
        for name, x in (("few", 1.0), ("many", 2.0))
    ]


def test_reproduce_writes_pages_and_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    for name in ("specedge/figure-10", "adaspec/table-2"):
        done = skit_here("reproduce", name, "--to", tmp_path)
        assert done.returncode == 0, done.stderr
        assert (
            done.stdout.splitlines()[-1]
            == f"report: {tmp_path / 'README.html'} (as text: README.md)"
        )
    overview = (tmp_path / "README.md").read_text()
    assert "[specedge/figure-10](specedge.md)" in overview
    assert "[adaspec/table-2](adaspec.md)" in overview
    page = (tmp_path / "specedge.md").read_text()
    assert "Nothing is predicted here: 3 identities (3 within the goal)." in page
    assert "94.2 ms per verification" in page
    assert (tmp_path / "plots" / "adaspec-table-2.svg").is_file()
    site = (tmp_path / "adaspec.html").read_text()
    assert "<svg " in site  # the figure is in the page
    assert 'href="specedge.html"' in (tmp_path / "README.html").read_text()
    assert_marks_are_rendered(tmp_path)
    results = read_object(tmp_path / "summary.json")["experiments"]["adaspec/table-2"]
    assert (results["within"], results["compared"]) == (0, 0)
    identities = results["roles"]["identity"]
    assert (identities["within"], identities["compared"]) == (4, 6)
    assert results["roles"]["fitted"]["compared"] == 3
    moves = {
        entry["value"]: entry["ratios"]["AdaSpec, trace 2 value"]
        for entry in results["sensitivity"]
    }
    assert moves["0.1"] == pytest.approx(
        [2.14 / (1 + 2.96 * 0.1757) / 1.42, 2.14 / (1 + 2.96 * 0.1) / 1.42]
    )


def test_changed_inputs_are_said_wherever_their_numbers_stand(tmp_path: Path) -> None:
    dearer = ("--set", "series.*.draft_cost=0.181", "--no-sensitivity")
    done = skit_here("reproduce", "adaspec/table-2", *dearer, "--to", tmp_path)
    assert done.returncode == 0, done.stderr
    said = "CHANGED INPUTS of adaspec/table-2: series.*.draft_cost: 0.181"
    assert said in " ".join(done.stdout.split())
    for page in ("README.md", "adaspec.md"):
        assert said in (tmp_path / page).read_text().replace("`", "")
    assert (
        "`skit reproduce adaspec/table-2 --set 'series.*.draft_cost=0.181'`"
        in (tmp_path / "adaspec.md").read_text()
    )
    (warning,) = api.load(tmp_path).warnings
    assert warning.startswith(said)
    unchanged = error_line(skit_here("reproduce", "adaspec/table-2", "--to", tmp_path))
    assert (
        "holds adaspec/table-2 with series.*.draft_cost: 0.181 in place of 0.0835, 0.1757, 0.0723: "
        "choose another folder with --to" in unchanged
    )


def test_a_changed_input_is_shown_before_and_after_and_struck_from_what_is_assumed(
    tmp_path: Path,
) -> None:
    fewer = {"devices": 8, "duration_s": 30, "seeds": 1}
    names = ["wisp/table-3"]
    done = reproduction.run(names, fewer, False, tmp_path, None, lambda *_: None, [])
    (result,) = done.experiments
    assert result.changes["devices"] == "8 in place of 100"
    assert result.changes["seeds"] == "1 in place of 5"
    one_seed = reproduction.reproduce(
        ALL["wisp/table-3"], lambda *_: None, {"seeds": 1}, sensitivity=False
    )
    assert [pair.unchanged for pair in result.published] == [
        pair.simulated for pair in one_seed.published
    ]
    centralized = next(pair for pair in result.published if pair.series == "centralized")
    assert centralized.unchanged
    assert centralized.simulated
    shown = " → ".join(
        significant(ours.mean, 4) for ours in (centralized.unchanged, centralized.simulated)
    )
    page = (done.folder / "wisp.md").read_text()
    assert f"| {shown} |" in page
    assert "ours, unchanged → changed" in page
    assert "| devices | CHANGED to devices=8; in the unchanged experiment 100, a" in page
    again = reproduction._earlier_results(done.folder)["wisp/table-3"]
    assert again.published == result.published


@pytest.mark.parametrize(
    ("name", "key", "before"),
    [
        ("wisp/table-3", "devices", "100"),
        ("wisp/table-3", "seeds", "5"),
        ("wisp/table-3", "link.rtt_s", "0.02"),
        ("wisp/table-3", "acceptance.alpha", "0.7322"),
        ("specedge/figure-11", "link.rtt_s", "0.01407, 0.015, 0.05, 0.065"),
        ("specedge/figure-11", "series.server only.method.depth", "5"),
        ("specedge/figure-11", "batch_size", "1"),
    ],
)
def test_the_previous_value_of_a_changed_input_is_found_wherever_it_stands(
    name: str, key: str, before: str
) -> None:
    assert inputs.describe_change(ALL[name], key, 3) == f"3 in place of {before}"


def test_a_series_with_another_scheduler_is_renamed_and_not_judged() -> None:
    experiment = ALL["wisp/table-2"]
    changes = {"scheduler": ["fcfs"]}
    names = inputs.replaced_series(experiment, changes)
    assert names["algorithm 1, late lane"] == "algorithm 1, late lane (scheduler fcfs)"
    assert "fcfs" not in names
    renamed = reproduction._renamed(experiment, names)
    assert renamed.against == names["algorithm 1, late lane"]
    rows = [
        FigureRow(number.series, number.where, {number.metric: {"mean": 100.0}})
        for number in renamed.published
    ]
    described = {"scheduler": inputs.describe_change(experiment, "scheduler", ["fcfs"])}
    assert described["scheduler"].startswith('fcfs in place of ["fcfs", "wisp-paper", ')
    result = outcome_of(renamed, compare_published(renamed, rows), described, names)
    of_ours = [pair for pair in result.published if pair.series in names.values()]
    assert of_ours
    assert not any(pair.counted or pair.value for pair in of_ours)
    claim = worlds()["wisp"].main_claim
    assert main_claim(claim, [result]).endswith(
        "It is not judged: 'algorithm 1, late lane (scheduler fcfs)' is not the paper's, since its "
        "inputs were changed."
    )
    assert inputs.replaced_series(experiment, {"scheduler.guard_s": 0.05}) == {}


def test_a_decoded_series_with_another_method_and_its_ratios_are_renamed() -> None:
    names = inputs.replaced_series(
        ALL["specedge/figure-11"], {"series.specedge, 15 ms.method": "specedge:depth=3"}
    )
    changed = "specedge, 15 ms (method specedge:depth=3)"
    assert names == {
        "specedge, 15 ms": changed,
        "server only over specedge, 15 ms": f"server only over specedge, 15 ms ({changed})",
    }


@pytest.mark.parametrize("name", ["wisp/table-2", "wisp/table-3"])
def test_every_assumed_input_of_wisps_main_tables_can_be_changed(name: str) -> None:
    experiment = ALL[name]
    for assumed in experiment.assumed:
        assert inputs.example_change(experiment, assumed), assumed.name


def test_every_example_of_an_assumed_input_works_in_some_experiment() -> None:
    """What a paper's world states need not be an input of all of its experiments."""
    works: dict[str, bool] = {}
    for experiment in ALL.values():
        for assumed in experiment.assumed:
            if assumed.example:
                used = bool(inputs.example_change(experiment, assumed))
                works[assumed.example] = works.get(assumed.example, False) or used
    assert len(works) > 10
    assert all(works.values()), works


@pytest.mark.parametrize(
    ("experiment", "change", "words"),
    [
        ("wisp/table-3", "devices=ten", "--devices must be a whole number, not 'ten'"),
        ("wisp/table-3", "max_btch=8", "has no such input (did you mean 'max_batch'?)"),
        (
            "adaspec/table-2",
            "series.*.draft_cost=-3",
            "must not be negative, as in --set 'series.*.draft_cost=",
        ),
    ],
)
def test_an_input_of_another_kind_is_one_line(
    experiment: str, change: str, words: str, tmp_path: Path
) -> None:
    assert words in error_line(
        skit_here("reproduce", experiment, "--set", change, "--out", tmp_path)
    )


def test_one_value_stands_for_a_list_of_one() -> None:
    assert settings_of({"concurrency": 10, "devices": 3}).devices == (3,)


def test_an_unknown_input_is_one_line(tmp_path: Path) -> None:
    line = error_line(
        skit_here("reproduce", "specedge/figure-10", "--set", "sedes=1", "--to", tmp_path)
    )
    assert line == (
        "--set sedes: specedge/figure-10 is a closed form; its inputs are series.NAME.INPUT, where INPUT is one of "
        "rtt_s, step_s, verify_s and NAME is * for all series or one of '15 ms', '40 ms', '50 ms'"
    )


def test_without_a_name_the_list_of_experiments_is_named() -> None:
    line = error_line(skit_here("reproduce"))
    assert "as in skit reproduce specedge/figure-10" in line
    assert "skit list experiments shows them" in line


def test_the_list_of_experiments_has_titles_and_times() -> None:
    listed = skit_here("list", "experiments").stdout
    titles = [*(world.title for world in worlds().values()), "Measured by others"]
    assert [line.strip("[]") for line in listed.splitlines() if line.startswith("[")] == titles
    words = " ".join(listed.split())
    assert "and on two (closed form, seconds)" in words


def refusal(name: str, **changes: object) -> str:
    """Return why an experiment refuses its changed inputs."""
    with pytest.raises(SkitError) as refused:
        changed_options(
            ALL[name], ALL[name].options, {key.replace("__", "."): v for key, v in changes.items()}
        )
    return str(refused.value)


def test_an_input_of_another_kind_or_of_no_series_is_refused() -> None:
    assert (
        refusal("wisp/table-1", seeds="x")
        == "--set seeds=x: seeds is a number, as in --set seeds=5"
    )
    assert refusal("wisp/table-7", seeds=0).startswith(
        "--set seeds=0: seeds is a whole number from 1 on"
    )
    assert "knows acceptance, " in refusal("wisp/table-1", foo=3)
    assert "is a closed form; its inputs are series.NAME.INPUT" in refusal(
        "wisp/figure-4", seeds="x"
    )
    assert "is a closed form" in refusal("wisp/figure-4", link__rtt_s=1)
    assert "its inputs are seeds and series.NAME.INPUT" in refusal("wisp/table-7", foo=3)
    field = "series.*.hit_rate"
    experiment = ALL["specpipe/ranges"]
    changed = changed_options(experiment, experiment.options, {field: 0.9})["series"]
    # Series of other laws, which have no hit rate, stay as they are.
    assert {entry.get("hit_rate") for entry in changed.values()} == {0.9, None}
    with pytest.raises(
        SkitError, match=r"hit_rate=u: series\.\*\.hit_rate is a number, as in .*hit_rate=0\.95"
    ):
        changed_options(experiment, experiment.options, {field: "u"})


@pytest.mark.parametrize("name", ALL)
def test_every_input_that_is_offered_is_known_and_no_other(name: str) -> None:
    experiment = ALL[name]
    options = experiment.options
    offered = dict.fromkeys(inputs.inputs_of(experiment))
    for series in ("*", *options.get("series", ())):
        offered |= {
            f"series.{series}.{key}": None for key in inputs.inputs_of_series(experiment, series)
        }
    if experiment.command in ("bench", "simulate", "capacity"):
        offered["link.rtt_s"] = None
    for key in offered:
        inputs._require_known(experiment, options, key)
        inputs._require_effect(experiment, options, key, inputs._place(experiment, key))
    for assumed in experiment.assumed:
        for value in assumed.values:
            changed = changed_options(experiment, options, {assumed.key: value})
            assert changed != options, assumed.key
    for key in ("foo", "foo.bar", "series.foo", "series.*.foo", "link.foo", "series.*.link.foo"):
        with pytest.raises(SkitError) as refused:
            changed_options(experiment, options, {key: 1})
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("series.*.rtt_s", "(did you mean 'link.rtt_s'?); it knows batch_size, "),
        ("series.specedge, 15 ms.foo", "INPUT is one of deployment, draft, method, "),
        ("series.none.method", "the series: server only, specedge, 15 ms"),
    ],
)
def test_a_decoding_experiment_names_the_inputs_that_it_has(key: str, words: str) -> None:
    with pytest.raises(SkitError, match=re.escape(words)):
        changed_options(ALL["specedge/figure-11"], ALL["specedge/figure-11"].options, {key: 0.03})


def test_a_field_of_all_deployments_reaches_every_decoded_series() -> None:
    experiment = ALL["specedge/figure-11"]
    changed = changed_options(experiment, experiment.options, {"link.rtt_s": 0.03})
    assert "replaced" not in changed
    for entry in changed["series"].values():
        series = DecodedSeries(**{**entry, "replaced": tuple(entry["replaced"])})
        assert series.load_deployment().link.rtt_s == 0.03


def test_decoded_series_and_options_have_the_fields_that_inputs_name() -> None:
    named = {field.name for field in fields(DecodedSeries)} - {"replaced"}
    assert set(inputs.OF_SERIES["bench"]) == named
    served = {field.name for field in fields(ServingSettings)} - {"recording", "argv"}
    assert option_names("simulate") == served - {"backend", "resume"} | {"slo_of"}


def test_a_wrong_input_is_refused_before_a_decoder_is_loaded() -> None:
    program = """
import sys
from specbench_kit.core.errors import SkitError
from specbench_kit.papers.experiment import experiments
from specbench_kit.studies.reproduction.inputs import changed_options
for name in ("specedge/figure-11", "wisp/table-10", "wisp/table-3", "wisp/table-2"):
    experiment = experiments()[name]
    try:
        changed_options(experiment, experiment.options, {"device": 60})
    except SkitError:
        continue
    raise AssertionError(name)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_folder_that_cannot_be_written_and_a_wrong_input_are_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(*_: object, **__: object) -> Any:
        raise AssertionError("an experiment ran")

    monkeypatch.setattr(reproduction, "reproduce", unexpected)
    file = tmp_path / "hosts"
    file.touch()
    for folder in (file, file / "below"):
        with pytest.raises(SkitError, match=f"cannot write into {folder}: {file} is a file"):
            reproduction.run(["wisp"], {}, False, tmp_path, folder, lambda *_: None, [])
    names = ["wisp/table-3", "specedge/figure-10"]
    with pytest.raises(SkitError, match="figure-10 is a closed form"):
        reproduction.run(names, {"devices": 60}, False, tmp_path, None, lambda *_: None, [])


def test_the_example_of_a_refused_value_can_be_pasted() -> None:
    key = "series.AdaSpec, trace 1.draft_cost"
    experiment = ALL["adaspec/table-2"]
    with pytest.raises(SkitError) as refused:
        changed_options(experiment, experiment.options, {key: -1})
    words, _, example = str(refused.value).partition(", as in --set ")
    assert words == f"--set {key}=-1: {key} must not be negative"
    (pasted,) = shlex.split(example)
    assert list(parse_changes([pasted])) == [key]


def test_a_list_of_another_length_than_the_series_is_refused() -> None:
    assert refusal("wisp/figure-8", scheduler=["fcfs", "edf"]) == (
        "--set scheduler: wisp/figure-8 has 4 series; give one value for all or 4, not 2"
    )


def test_a_closed_form_without_a_value_is_one_line() -> None:
    series = {"a": {"law": "rate", "tokens": 3, "seconds": 0}}
    with pytest.raises(SkitError, match="a: rate has no value at tokens=3, seconds=0"):
        law({"series": series}, lambda *_: None)


def test_earlier_results_are_judged_by_the_rules_of_today() -> None:
    """Their simulated numbers stay; roles, counts and words are those of the library."""
    experiment = ALL["specedge/table-1"]
    rows = [
        FigureRow("gain, 14B", {}, {"ratio": {"mean": 2.18}}),
        FigureRow("server only, 14B", {}, {"throughput": {"mean": 31.0}}),
    ]
    today = outcome_of(experiment, compare_published(experiment, rows))
    today.wall_s = 3.0
    old = [
        structs.replace(pair, role="predicted", fitted_to="", counted=True)
        for pair in today.published
    ]
    earlier = structs.replace(today, published=old, within=9, compared=9, verdict="")
    again = reproduction.judge_again(experiment, earlier)
    assert again == today
    assert (again.within, again.compared, again.wall_s) == (1, 1, 3.0)


def test_committed_pages_say_about_how_long_each_experiment_takes() -> None:
    """The classes are those of the times that the committed pages record, within the factor 2 of another machine."""
    limits = {"seconds": (0.0, 20.0), "a minute": (20.0, 90.0), "minutes": (90.0, 3600.0)}
    summary = Path(__file__).parents[3] / "results" / "reference" / "papers" / "summary.json"
    recorded = read_object(summary)["experiments"]
    assert recorded.keys() == ALL.keys()
    for name, experiment in ALL.items():
        low, high = limits[experiment.takes]
        assert low / 2 <= recorded[name]["wall_s"] <= 2 * high, name


def test_the_committed_overview_has_one_count() -> None:
    """Headline, table of papers and summary add up to the predictions of the library's experiments."""
    folder = Path(__file__).parents[3] / "results" / "reference" / "papers"
    kept = reproduction._earlier_results(folder)
    page = (folder / "README.md").read_text()
    assert page.splitlines()[2] == f"**{totals(list(kept.values()))}.**"
    for name, result in kept.items():
        assert f" | {result.verdict} |\n" in page, name


def test_what_was_reproduced_before_an_interruption_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(experiment: Any, *_: object, **__: object) -> Any:
        if experiment.name == "specedge/prices":
            raise KeyboardInterrupt
        return outcome_of(experiment, [])

    monkeypatch.setattr(reproduction, "reproduce", broken)
    names = ["specedge/figure-10", "specedge/prices"]
    with pytest.raises(KeyboardInterrupt):
        reproduction.run(names, {}, False, tmp_path, tmp_path / "kept", lambda *_: None, [])
    assert list(read_object(tmp_path / "kept" / "summary.json")["experiments"]) == names[:1]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"experiments": {"x/y": {"name": "x/y"}}}', r"experiments\[\.\.\.\]\.command is missing"),
        ('{"experiments": []}', "experiments must be an object"),
    ],
)
def test_results_that_do_not_have_what_a_report_reads_are_one_line(
    content: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(
        SkitError, match=rf"summary\.json was not written by skit reproduce \({problem}.*\): choose"
    ) as refusal:
        reproduction._earlier_results(tmp_path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "name",
    [name for name, experiment in ALL.items() if experiment.command in ("simulate", "capacity")],
)
def test_the_kit_accepts_the_options_of_every_served_experiment(name: str) -> None:
    """All scenarios are built; to run them takes minutes."""
    experiment = ALL[name]
    options = {key: value for key, value in experiment.options.items() if key not in GRID}
    for _, given in points_of(derived_of(experiment.options).over, options):
        slo = {"slo": [AN_SLO]} if "slo_of" in given else {}
        settings = settings_of(
            {key: value for key, value in given.items() if key != "slo_of"} | slo
        )
        builder = ScenarioBuilder(settings)
        for point in settings.points():
            assert builder.scenario(point).source.typical.longest >= 0


def test_a_main_claim_is_told_of_every_variant_and_no_variant_is_ahead_of_its_own_row() -> None:
    """As printed, WISP's scheduler serves fewer devices than the server that drafts for all, which the page says."""
    folder = ROOT / "results" / "reference" / "papers"
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    table = summary["experiments"]["wisp/table-2"]
    ours = {
        (number["series"], number["where"]["slo"]): number["simulated"]["mean"]
        for number in table["published"]
        if number["simulated"] and "slo" in number["where"]
    }
    leads = [
        f"{slo}: {significant(ours['algorithm 1', slo] / ours['centralized', slo], 3)}"
        for slo in ("class-1", "class-2", "class-3", "class-4")
    ]
    without_algorithm_1 = [
        f"{slo}: {significant(ours['fcfs', slo] / ours['centralized', slo], 3)}"
        for slo in ("class-1", "class-2", "class-3", "class-4")
    ]
    for page in ("README.md", "wisp.md"):
        text = (folder / page).read_text(encoding="utf-8")
        assert f"before all others, ours is {', '.join(leads)}." in text
        assert (
            "cache, of which the paper prints no number, ours is "
            f"{', '.join(without_algorithm_1)}." in text
        )
        assert "algorithm 1, late lane / algorithm 1" not in text


def in_terminal(results: list[ReproducedExperiment]) -> list[str]:
    """Return the lines that a terminal of 80 columns shows."""
    terminal = StringIO()
    report.print_results(Console(width=80, file=terminal, color_system=None), results)
    return terminal.getvalue().splitlines()


@pytest.fixture(scope="module")
def kept() -> dict[str, ReproducedExperiment]:
    """The committed results."""
    return dict(reproduction._earlier_results(ROOT / "results" / "reference" / "papers"))


def test_every_experiment_fits_a_screen_of_40_lines_and_begins_with_the_main_claim(
    kept: dict[str, ReproducedExperiment],
) -> None:
    for name, result in kept.items():
        lines = in_terminal([result])
        assert len(lines) <= 39, name
        assert max(map(len, lines)) <= 80, name
        assert "'s main claim" in " ".join(lines[:2]), name


def test_the_table_of_many_configurations_fits_a_terminal_of_80_columns(
    kept: dict[str, ReproducedExperiment],
) -> None:
    """Each number stands on one line; what it is is a mark, and each name is explained once."""
    lines = in_terminal([kept["wisp/table-2"]])
    words = " ".join(lines)
    assert words.startswith("WISP's main claim, that a server serves 1.69 to 2.10 times as many")
    said = "it does not come out within 15% (printed 1.69 to 2.10, ours 1.30 to 1.36)"
    assert f"{said}, for 'algorithm 1, late lane'." in words
    begin = next(number for number, line in enumerate(lines) if line.startswith("configuration"))
    table = lines[begin + 2 : next(n for n, line in enumerate(lines) if line.startswith("'fcfs'"))]
    assert all(re.search(r"x$|–$", line) for line in table)
    assert any(re.match(r"algorithm 1 \(slo class-1\) +164\.0 \* ", line) for line in table)
    for name in ("algorithm 1, late lane", "centralized"):
        assert sum(line.startswith(f"'{name}':") for line in lines) == 1
    hidden = len(kept["wisp/table-2"].published) - len(table)
    assert f"* 1 of 2 assumptions; – not in the paper's text; {hidden} more on the page" in words


def test_a_changed_run_says_how_the_claim_moves_and_that_its_direction_is_reversed(
    kept: dict[str, ReproducedExperiment],
) -> None:
    """Ours falls below 1 where 1.69 and more is printed; both sides of the ratio stay in sight."""
    result = kept["wisp/table-2"]

    def moved(pair: ComparedNumber) -> ComparedNumber:
        lead = pair.ratio_of_ratios
        halved = lead and structs.replace(lead, simulated=lead.simulated / 2, ratio=lead.ratio / 2)
        return structs.replace(pair, unchanged=pair.simulated, ratio_of_ratios=halved)

    changed = structs.replace(result, published=[moved(pair) for pair in result.published])
    lines = in_terminal([changed])
    assert (
        "it does not come out, and its direction is reversed (printed 1.69 to 2.10, ours 1.30 to "
        "1.36 → 0.650 to 0.680)" in " ".join(lines)
    )
    for point in ("class-1", "class-2", "class-3", "class-4"):
        assert any(line.startswith(f"centralized (slo {point})") for line in lines), point


def test_several_experiments_take_a_line_each(kept: dict[str, ReproducedExperiment]) -> None:
    adaspec = [result for name, result in kept.items() if name.startswith("adaspec")]
    lines = in_terminal(adaspec)
    assert len(lines) < 15
    for result in adaspec:
        assert sum(line.startswith(f"{result.name} ") for line in lines) == 1
    assert len(in_terminal(list(kept.values()))) <= 39


def test_an_input_may_turn_a_gain_into_a_loss() -> None:
    long = {"law": "speedup", "drafted": 4, "accepted": 1, "draft_cost": 0.1}
    short = {"law": "speedup", "drafted": 1, "accepted": 0.5, "draft_cost": 0.1}
    content = {
        "command": "law",
        "summary": "a gain of long drafts over short ones",
        "source": "no paper",
        "role": "predicted",
        "options": {
            "series": {"long": long, "short": short},
            "differences": {"gain": {"of": "long/value", "less": "short/value"}},
        },
        "published": [
            {"series": "gain", "metric": "difference", "value": 0.1},
            {"series": "long", "metric": "value", "value": 1.4},
        ],
        "assumed": [
            {
                "name": "cost",
                "value": "0.1",
                "effect": "Long drafts lose most.",
                "key": "series.*.draft_cost",
                "values": [0.5],
            }
        ],
    }
    result = reproduction.reproduce(
        build_experiment("x/gain", content), lambda *_: None, {}, sensitivity=True
    )
    (moved,) = result.sensitivity
    before, after = moved.ratios["gain difference"]
    assert before > 0 > after
    long_before, long_after = moved.ratios["long value"]
    assert moved.effect == pytest.approx(long_after / long_before)


def test_a_point_of_an_axis_may_set_several_inputs_or_none() -> None:
    options = {
        "series": {"a": {"law": "speedup", "drafted": 4, "accepted": 1, "draft_cost": 0.25}},
        "over": {
            "change": {
                "inputs": {
                    "as printed": {},
                    "both": {"series.a.accepted": 3, "series.a.draft_cost": 0.75},
                }
            }
        },
    }
    rows = rows_of(law, options, lambda *_: None)
    assert [(row.point["change"], row.figure("value")["mean"]) for row in rows] == [
        ("as printed", 1.0),
        ("both", 1.0),
    ]
    dearer = rows_of(law, replace_input(options, "series.a.drafted", 8), lambda *_: None)
    assert [row.figure("value")["mean"] for row in dearer] == [2 / 3, 4 / 7]
    with pytest.raises(SkitError, match="an axis has a key with values, or inputs"):
        derived_of({"over": {"change": {"key": "x"}}})


STEPS = Steps(
    series="wisp",
    over="centralized",
    metric="capacity",
    axis="change",
    by="slo",
    first="as printed",
    single=("lane",),
    cumulative=("lane", "lane and whole drafts"),
    printed={"class-1": 1.5, "class-4": 2.5},
    unit="devices over devices",
    sentence="Whole drafts close the rest.",
)


def with_steps(points: tuple[str, ...]) -> ReproducedExperiment:
    """The result of an experiment at some points: WISP serves 10, 20 and 30 devices, the other 10."""
    devices = {"as printed": 10.0, "lane": 20.0, "lane and whole drafts": 30.0}
    where = [{"change": point, "slo": slo} for point in points for slo in ("class-1", "class-4")]
    both = ("wisp", "centralized")
    numbers = [Published(series, "capacity", None, point) for series in both for point in where]
    rows = [
        FigureRow(
            series,
            {**point},
            {"capacity": {"mean": devices[point["change"]] if series == "wisp" else 10.0}},
        )
        for series in both
        for point in where
    ]
    experiment = replace(ALL["wisp/table-2-steps"], published=tuple(numbers))
    return outcome_of(experiment, compare_published(experiment, rows))


def test_steps_say_how_much_of_the_gap_each_change_closes() -> None:
    result = with_steps(("as printed", "lane", "lane and whole drafts"))
    rows = steps.steps_table(result, STEPS).rows
    assert [tuple(row) for row in rows] == [
        ("as printed", "", 1.0, 1.0, 1.0, ""),
        ("lane", "alone", 2.0, 2.0, 2.0, "100%"),
        ("lane and whole drafts", "in turn", 3.0, 3.0, 3.0, "200%"),
        ("printed", "", 1.5, 2.5, 2.0, ""),
    ]


def test_steps_without_all_their_points_are_not_drawn() -> None:
    assert report._steps_of(with_steps(("as printed",))) is None
