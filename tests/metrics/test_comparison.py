"""Runs side by side: rows, paired statistics, and what their intervals show."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from msgspec import to_builtins
from msgspec.structs import asdict, replace
from report_builders import failed_record, make_run, priced
from run_builders import DRAFTS, in_turn, plain, records_of, write_methods, write_run

from specbench_kit.core.errors import SkitError
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.losslessness import Losslessness, OutputCounts
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.metrics.run_summary import SamplingCheck
from specbench_kit.metrics.summary import summarise
from specbench_kit.metrics.verdicts import FASTER, NO_DIFFERENCE, SLOWER, TOO_FEW, verdict
from specbench_kit.metrics.vocabulary import METRICS
from specbench_kit.reports.comparison import wording
from specbench_kit.reports.comparison.plots import pictures
from specbench_kit.reports.comparison.terminal import winner_of
from specbench_kit.reports.sections import headlines
from specbench_kit.reports.sections.columns import LOSSLESS, SPEEDUP, leading_columns
from specbench_kit.reports.writing.formatting import interval, share, times


def compared(paths, **options):
    runs, problems = load_runs(paths)
    return compare(runs, problems=problems, **options)


@pytest.fixture(scope="module")
def folder(comparison):
    return Path(comparison.folders[0]).parent


def test_every_method_has_a_row_below_one_baseline(comparison):
    assert [series.label for series in comparison.series] == ["autoregressive", *sorted(DRAFTS)]
    assert [series.is_derived for series in comparison.series] == [True] + [False] * len(DRAFTS)
    assert len(comparison.runs) == len(DRAFTS)
    assert comparison.overall["autoregressive"].acceptance_length == 1


def test_rows_hold_the_metrics_of_the_vocabulary(folder, comparison):
    run = load_runs([folder])[0][0]
    alone = summarise(run.group, run.plain, makespan_s=max(r.finished_s for r in run.records))[
        "overall"
    ]
    row = comparison.overall[run.method]
    for name in (
        "speedup",
        "acceptance_length",
        "acceptance_rate",
        "draft_efficiency",
        "wdt",
        "throughput",
        "win_share",
    ):
        assert row.value(name) == pytest.approx(alone[name]), name
    for name in ("ttft", "tpot", "itl", "phase_seconds"):
        assert asdict(getattr(row, name)) == alone[name]
    assert row.acceptance_at == alone["acceptance_at"]
    assert row.intervals["acceptance_length"] == alone["intervals"]["acceptance_length"]
    (low, high), (inner_low, inner_high) = row.intervals["speedup"], alone["intervals"]["speedup"]
    assert low < inner_low < inner_high < high  # all rows of a table hold together


def test_a_row_holds_every_number_that_the_summary_of_its_run_holds(tmp_path):
    """A table has more numbers than a run: those that compare methods. It computes all others as the run did."""
    records = in_turn(records_of(4, 0.7, 8, 24))
    deployment = to_builtins(priced(4.0, 2.0))
    path = write_run(
        tmp_path, "fixed-k:k=4", records, in_turn(plain(records)), deployment=deployment
    )
    (run,), _ = load_runs([path])
    row = compare([run]).overall["fixed-k:k=4"]
    held = {metric.name: run.summary.overall.value(metric.name) for metric in METRICS}
    held = {name: value for name, value in held.items() if value is not None}
    assert {
        "server_idle_share",
        "edge_idle_share",
        "cost_efficiency",
        "throughput",
        "speedup",
    } <= held.keys()
    assert {name: row.value(name) for name in held} == {
        name: pytest.approx(value) for name, value in held.items()
    }


def test_the_reference_is_the_fastest_that_can_be_deployed(tmp_path):
    write_methods(tmp_path, drafts={"oracle": (6, 0.95), "wisp": (4, 0.8), "fixed-k:k=3": (3, 0.6)})
    comparison = compared([tmp_path])
    assert comparison.overall["oracle"].speedup > comparison.overall["wisp"].speedup
    assert comparison.reference == "wisp"
    assert comparison.overall["oracle"].verdict == FASTER
    assert comparison.overall["fixed-k:k=3"].verdict == SLOWER
    assert comparison.overall["oracle"].headroom == pytest.approx(1)
    assert 0 < comparison.overall["wisp"].headroom < 1


def test_a_modelled_drafter_that_is_always_right_is_no_candidate(tmp_path):
    """It would be a winner that nobody can run; with shares of right tokens as published it is a drafter like others.

    The gap below the oracle stays the oracle's, however fast such a drafter is.
    """
    bound, likely = "fixed-k:k=8,drafter=block", "fixed-k:k=6,drafter=block.keep=1-0.8"
    write_methods(
        tmp_path, drafts={bound: (8, 0.99), "oracle": (6, 0.95), likely: (6, 0.9), "wisp": (4, 0.8)}
    )
    comparison = compared([tmp_path])
    assert comparison.overall[bound].speedup > comparison.overall["oracle"].speedup
    assert comparison.reference == likely
    assert comparison.overall["oracle"].headroom == pytest.approx(1)
    assert comparison.overall[bound].headroom is None, (
        "it is no share of a gap that it is not within"
    )


@pytest.mark.parametrize("rung", [(6, 0.9), (3, 0.7)])
def test_a_report_says_how_much_of_the_gap_below_the_oracle_is_closed(tmp_path, rung):
    write_methods(
        tmp_path,
        drafts={"oracle": (6, 0.95), "reachable": rung, "wisp": (4, 0.8), "fixed-k:k=3": (3, 0.6)},
    )
    comparison = compared([tmp_path])
    closed, best = (comparison.overall[name].headroom for name in ("reachable", "wisp"))
    assert wording.reachable_gap(comparison) == (
        f"Below the oracle: `reachable` closes {share(closed)} of the gap between autoregressive decoding and "
        f"`oracle`, and `wisp` {share(best)}."
    )


def test_a_method_that_the_oracle_does_not_bound_is_named_and_closes_no_gap(tmp_path):
    drafts = {"oracle": (6, 0.9), "reachable": (6, 0.8), "wisp": (4, 0.7), "pearl": (8, 0.99)}
    write_methods(tmp_path, drafts=drafts)
    comparison = compared([tmp_path])
    assert comparison.overall["pearl"].headroom is None
    assert comparison.overall["wisp"].headroom < comparison.overall["reachable"].headroom < 1
    bounded = "The oracle bounds chains of its drafter that wait for verdicts: `pearl` is faster."
    best = share(comparison.overall["wisp"].headroom)
    assert wording.reachable_gap(comparison).endswith(f"and `wisp` {best}. {bounded}")


def test_a_bound_is_never_the_fastest_that_can_be_deployed(tmp_path):
    """Neither an oracle nor a rung, even where it is faster than all others."""
    write_methods(
        tmp_path, drafts={"reachable": (6, 0.95), "wisp": (4, 0.8), "fixed-k:k=3": (3, 0.6)}
    )
    comparison = compared([tmp_path])
    assert comparison.overall["reachable"].speedup > comparison.overall["wisp"].speedup
    assert (comparison.reference, winner_of(comparison)) == ("wisp", "wisp")
    assert {series.label for series in comparison.series if series.is_bound} == {"reachable"}


@pytest.mark.parametrize("missing", ["oracle", "reachable", "wisp"])
def test_a_report_without_a_rung_says_nothing_of_what_is_reachable(tmp_path, missing):
    drafts = {"oracle": (6, 0.95), "reachable": (6, 0.9), "wisp": (4, 0.8)}
    write_methods(
        tmp_path, drafts={name: draft for name, draft in drafts.items() if name != missing}
    )
    assert wording.reachable_gap(compared([tmp_path])) == ""


def test_there_is_no_headroom_below_a_bound_that_is_not_shown_to_be_faster(tmp_path):
    write_methods(tmp_path, requests=3, drafts={"oracle": (6, 0.95), "wisp": (4, 0.8)})
    comparison = compared([tmp_path])
    assert comparison.overall["oracle"].speedup_verdict == TOO_FEW
    assert comparison.overall["wisp"].headroom is None
    assert comparison.overall["oracle"].fastest_share is None


def test_another_reference_can_be_named_by_spec_or_by_method(folder):
    assert compared([folder], against="threshold").reference == "threshold"
    assert compared([folder], against="fixed-k").reference == "fixed-k:k=3"
    with pytest.raises(
        SkitError,
        match="no run of 'specinfer' to compare with; there are autoregressive, fixed-k:k=3",
    ):
        compared([folder], against="specinfer")


def test_shares_of_prompts_won_add_up(comparison):
    shares = [
        row.fastest_share for label, row in comparison.overall.items() if label != "autoregressive"
    ]
    assert sum(shares) == pytest.approx(1)
    best = comparison.overall[comparison.reference]
    assert best.relative_speed is None
    for label, row in comparison.overall.items():
        if label not in ("autoregressive", comparison.reference):
            assert row.relative_speed == pytest.approx(row.speedup / best.speedup)


def test_equal_times_are_no_win(tmp_path):
    records = in_turn(records_of(4, 0.7, 12, 24))
    for method in ("threshold", "wisp"):
        write_run(tmp_path, method, records, in_turn(plain(records)))
    comparison = compared([tmp_path])
    (slower_label,) = {"threshold", "wisp"} - {comparison.reference}
    row = comparison.overall[slower_label]
    assert row.verdict == NO_DIFFERENCE
    assert row.win_share_against == 0.5
    assert f"no difference from `{slower_label}` is shown" in headlines.of_comparison(comparison)


def test_of_many_methods_a_sentence_names_the_first() -> None:
    assert headlines._first_names(["a", "b", "c", "d"]) == "a, b, c, d"
    assert headlines._first_names(["a", "b", "c", "d", "e"]) == "a, b, c and 2 others"


def test_a_difference_inside_its_interval_is_called_none(tmp_path):
    rng = np.random.default_rng(1)
    records = in_turn(records_of(4, 0.7, 30, 24))
    noisy = [replace(r, e2e_s=r.e2e_s * rng.normal(1.002, 0.1)) for r in records]
    for method, side in (("threshold", records), ("wisp", noisy)):
        write_run(tmp_path, method, side, in_turn(plain(records)))
    comparison = compared([tmp_path], against="threshold")
    low, high = comparison.overall["wisp"].intervals["relative_speed"]
    assert low < 1 < high
    assert comparison.overall["wisp"].verdict == NO_DIFFERENCE


def test_verdicts_need_six_prompts():
    assert verdict(1.2, [1.1, 1.3], 6) == FASTER
    assert verdict(0.8, [0.7, 0.9], 6) == SLOWER
    assert verdict(1.0, [0.9, 1.1], 6) == NO_DIFFERENCE
    assert verdict(1.05, [1.0, 1.1], 6) == NO_DIFFERENCE
    assert verdict(1.2, [1.1, 1.3], 5) == TOO_FEW
    assert verdict(None, None, 100) == TOO_FEW


def test_a_speedup_that_shows_no_difference_is_marked(tmp_path):
    records = in_turn(records_of(4, 0.7, 3, 24))
    write_run(tmp_path, "wisp", records, in_turn(plain(records)))
    comparison = compared([tmp_path])
    assert comparison.overall["wisp"].speedup_verdict == TOO_FEW
    assert SPEEDUP.text(SPEEDUP.cell(comparison.overall["wisp"])).endswith(" ?")
    assert headlines.of_comparison(comparison).endswith(
        "x the speed of autoregressive decoding on a typical prompt, too few prompts to tell."
    )


def test_two_runs_of_one_method_are_numbered_and_held_against_the_first(tmp_path):
    old, new = (in_turn(records_of(4, 0.7, 12, 24, slower=slower)) for slower in (1.0, 1.25))
    paths = [
        write_run(tmp_path / name, "wisp", side, in_turn(plain(old)))
        for name, side in (("a", old), ("b", new))
    ]
    comparison = compared(paths)
    assert [series.label for series in comparison.series] == [
        "autoregressive",
        "wisp #1",
        "wisp #2",
    ]
    assert comparison.reference == "wisp #1"
    assert comparison.overall["wisp #2"].relative_speed == pytest.approx(1 / 1.25)
    assert comparison.overall["wisp #2"].verdict == SLOWER


def test_baselines_of_different_runs_have_a_row_each(tmp_path):
    records = in_turn(records_of(4, 0.7, 12, 24))
    for method, slower in (("threshold", 1.0), ("wisp", 1.5)):
        baseline = [replace(r, e2e_s=r.e2e_s * slower) for r in in_turn(plain(records))]
        write_run(tmp_path, method, records, baseline)
    labels = [series.label for series in compared([tmp_path]).series]
    assert labels == ["autoregressive of threshold", "autoregressive of wisp", "threshold", "wisp"]


def test_a_run_of_the_baseline_itself_is_the_baseline(tmp_path):
    records = in_turn(records_of(4, 0.7, 12, 24))
    write_run(tmp_path, "autoregressive", in_turn(plain(records)))
    write_run(tmp_path, "wisp", records, in_turn(plain(records)))
    comparison = compared([tmp_path])
    assert [(series.label, series.is_derived) for series in comparison.series] == [
        ("autoregressive", False),
        ("wisp", False),
    ]


def test_categories_share_the_runs_time(comparison):
    parts = [part for part in comparison.parts if part.kind == "category"]
    assert [part.name for part in parts] == ["chat", "code", "maths"]
    for label, row in comparison.overall.items():
        assert sum(part.rows[label].tokens for part in parts) == row.tokens
        assert all(part.rows[label].throughput is None for part in parts)


def test_several_datasets_make_one_table_and_one_each(tmp_path):
    for number, name in enumerate(("gsm8k", "mt-bench"), 1):
        dataset = make_run()["dataset"] | {"name": name, "digest": str(number) * 64}
        write_methods(tmp_path, requests=6 * number, dataset=dataset)
    comparison = compared([tmp_path])
    assert [(part.kind, part.name) for part in comparison.parts[:3]] == [
        ("overall", "all requests"),
        ("dataset", "gsm8k"),
        ("dataset", "mt-bench"),
    ]
    for label, row in comparison.overall.items():
        overall_row, small, large = (
            row,
            comparison.parts[1].rows[label],
            comparison.parts[2].rows[label],
        )
        assert (overall_row.finished, small.finished, large.finished) == (18, 6, 12)
        assert overall_row.makespan_s == pytest.approx(small.makespan_s + large.makespan_s)
    assert comparison.overall["wisp"].speedup_units == 18


def test_repeats_are_drawn_with_their_prompt(tmp_path):
    write_methods(tmp_path, requests=8, repeats=3)
    row = compared([tmp_path]).overall["wisp"]
    assert (row.finished, row.speedup_units, row.repeats) == (24, 8, 3)
    assert len(row.speedup_by_repeat) == 3
    assert min(row.speedup_by_repeat) <= row.speedup <= max(row.speedup_by_repeat)
    assert row.repeat_spread > 0
    assert row.lossless == OutputCounts(compared=24, identical=24, ties=0, errors=0)


def test_a_machine_that_drifts_between_repeats_is_warned_of(tmp_path):
    records = records_of(4, 0.7, 8, 24)
    slower = records_of(4, 0.7, 8, 24, slower=1.2)
    all_records = in_turn([*records, *(replace(r, repeat=1) for r in slower)])
    write_run(tmp_path, "wisp", all_records, in_turn(plain(all_records)))
    comparison = compared([tmp_path])
    assert comparison.overall["wisp"].repeat_spread == pytest.approx(0.2 / 1.1)
    assert (
        "UNSTEADY MACHINE: repeats of the same requests differ by up to 18.2% of their mean time."
        in wording.cautions(comparison)
    )


def test_repeating_everything_narrows_no_interval(tmp_path):
    records = in_turn(records_of(4, 0.7, 12, 24))
    again = [replace(r, repeat=1) for r in records]
    single = write_run(tmp_path / "once", "wisp", records, in_turn(plain(records)))
    twice = write_run(
        tmp_path / "twice", "wisp", [*records, *again], in_turn(plain([*records, *again]))
    )
    bounds = [compared([path]).overall["wisp"].intervals["speedup"] for path in (single, twice)]
    assert bounds[0] == pytest.approx(bounds[1])


def test_pooled_and_per_request_averages_differ_where_lengths_do(tmp_path):
    short, long = records_of(4, 0.9, 6, 8), records_of(4, 0.3, 6, 60)
    records = in_turn([*short, *(replace(r, request_id=f"long{r.request_id}") for r in long)])
    write_run(tmp_path, "wisp", records, in_turn(plain(records)))
    row = compared([tmp_path]).overall["wisp"]
    own = [len(r.output_ids) / len(r.rounds) for r in records]
    assert row.acceptance_length_request_mean == pytest.approx(np.mean(own))
    assert row.acceptance_length < row.acceptance_length_request_mean
    assert row.speedup < row.speedup_request_mean
    rates = [
        np.mean([len(r.output_ids) / r.e2e_s for r in side]) for side in (records, plain(records))
    ]
    assert row.speedup_of_mean_rates == pytest.approx(rates[0] / rates[1])


def test_outputs_are_compared_with_the_baselines(tmp_path):
    records = in_turn(records_of(4, 0.7, 8, 24))
    baseline = in_turn(plain(records))
    records[0] = replace(records[0], output_ids=[1, *records[0].output_ids[1:]])
    records[1] = replace(records[1], output_ids=[1, *records[1].output_ids[1:]])
    records[2] = replace(records[2], output_ids=[None] * 24)
    records[3] = replace(records[3], output_ids=[1, *records[3].output_ids[1:]])
    path = write_run(tmp_path, "wisp", records, baseline)
    run = load_runs([path])[0][0]
    run.summary.lossless.divergences = [
        Losslessness(request_id="q0", verdict="tie"),
        Losslessness(request_id="q3", verdict="unjudged"),
    ]
    row = compare([run]).overall["wisp"]
    assert row.lossless == OutputCounts(compared=7, identical=4, ties=1, errors=1, unjudged=1)
    assert LOSSLESS.cell(row) == "4/7, 1 tied, 1 WRONG, 1 unjudged"


def test_a_tie_in_one_repeat_excuses_no_error_in_another(tmp_path):
    records = [record for repeat in (0, 1) for record in records_of(4, 0.7, 8, 24, repeat=repeat)]
    baseline = plain(records)
    for at in (0, 8):
        records[at] = replace(records[at], output_ids=[1, *records[at].output_ids[1:]])
    run = load_runs([write_run(tmp_path, "wisp", in_turn(records), in_turn(baseline))])[0][0]
    run.summary.lossless.divergences = [Losslessness(request_id="q0", repeat=0, verdict="tie")]
    row = compare([run]).overall["wisp"]
    assert row.lossless == OutputCounts(compared=16, identical=14, ties=1, errors=1)


def test_sampled_outputs_are_not_compared(tmp_path):
    write_methods(tmp_path, config=make_run()["config"] | {"temperature": 0.8})
    assert compared([tmp_path]).overall["wisp"].lossless is None


@pytest.mark.parametrize(
    ("check", "cell"),
    [
        (SamplingCheck(rule="residual", consistent=True), "consistent"),
        (SamplingCheck(rule="residual", consistent=False), "WRONG"),
        (SamplingCheck(rule="residual", consistent=None), "undecided"),
        (None, "–"),
    ],
)
def test_a_table_says_whether_sampled_outputs_follow_the_target(
    tmp_path, check: SamplingCheck | None, cell: str
):
    records = in_turn(records_of(4, 0.7, 8, 24))
    config = make_run()["config"] | {"temperature": 0.8}
    run = load_runs([write_run(tmp_path, "wisp", records, in_turn(plain(records)), config=config)])[
        0
    ][0]
    run.summary.lossless, run.summary.sampling = None, check
    rows = compare([run]).overall
    assert LOSSLESS.cell(rows["wisp"]) == cell
    assert LOSSLESS.cell(rows["autoregressive"]) == "–"


def test_failed_requests_count_nowhere_else(tmp_path):
    records = in_turn(records_of(4, 0.7, 8, 24))
    baseline = in_turn(plain(records))
    write_run(tmp_path, "wisp", [*records[:-1], failed_record("q7")], baseline)
    row = compared([tmp_path]).overall["wisp"]
    assert (row.finished, row.failed, row.speedup_units) == (7, 1, 7)


def test_unknown_numbers_of_other_tools_are_left_open(tmp_path):
    records = records_of(4, 0.7, 8, 24)
    unknown = {"drafted": None, "submitted": None, "draft_s": None, "verify_s": None, "end_s": None}
    records = [replace(r, rounds=[replace(step, **unknown) for step in r.rounds]) for r in records]
    write_run(tmp_path, "eagle of another tool", in_turn(records))
    row = compared([tmp_path]).overall["eagle of another tool"]
    assert row.acceptance_length > 1
    assert row.acceptance_at[0] > 0
    for name in (
        "acceptance_rate",
        "draft_efficiency",
        "wdt",
        "server_tokens_per_busy_second",
        "submitted",
    ):
        assert row.value(name) is None, name
    assert row.phase_seconds.verify is None


def test_order_star_headline_and_table_go_by_one_speedup_that_of_a_typical_prompt(tmp_path):
    """One prompt took thirty times as long with the method that is faster on all others: in all it is slower."""
    held_up = records_of(4, 0.8, 12, 24, slower=30.0)[0]
    typically = in_turn([held_up, *records_of(4, 0.8, 12, 24)[1:]])
    in_all = in_turn(records_of(4, 0.8, 12, 24, slower=1.15))
    baseline = in_turn(plain(typically))
    write_run(tmp_path, "fixed-k:k=3", in_all, baseline)
    write_run(tmp_path, "wisp", typically, baseline)
    comparison = compared([tmp_path])
    first, second = (comparison.overall[label] for label in ("wisp", "fixed-k:k=3"))
    assert first.speedup < second.speedup
    assert first.typical_speedup > second.typical_speedup
    assert list(comparison.from_fast_to_slow().overall)[:2] == ["wisp", "fixed-k:k=3"]
    assert (comparison.reference, winner_of(comparison)) == ("wisp", "wisp")
    ends = interval(first.bounds("typical_speedup"))
    assert headlines.of_comparison(comparison).startswith(
        f"`wisp`: {times(first.typical_speedup)} the speed of autoregressive decoding on a typical prompt "
        f"(95% interval {ends})"
    )
    assert SPEEDUP.text(SPEEDUP.cell(first)).startswith(f"{times(first.typical_speedup)} ({ends})")
    assert [
        column
        for column in leading_columns("comparison", "terminal", "paper")
        if column.unit == "times"
    ] == [SPEEDUP]
    picture = next(pictures(comparison))
    assert picture.name == "speedup"
    axes = Figure().subplots()
    picture.draw(axes)
    assert axes.lines[1].get_xdata()[0] == first.typical_speedup
