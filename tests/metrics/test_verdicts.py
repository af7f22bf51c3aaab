"""What may be said of runs, from their files on."""

import numpy as np
import pytest
from msgspec.structs import asdict, replace
from report_builders import render_comparison as render
from report_builders import run_summary, summary_of
from run_builders import in_turn, plain, records_of, write_methods, write_run

from specbench_kit.core.errors import SkitError
from specbench_kit.metrics.acceptance import (
    EXPECTED_RATIOS,
    PAUSE_RATIOS,
    PIPELINE_RATIOS,
    PROACTIVE_RATIOS,
)
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.gate import Condition, violations
from specbench_kit.metrics.paired import Side, relative_speed
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.metrics.run_summary import SamplingCheck
from specbench_kit.metrics.statistics import units_of
from specbench_kit.metrics.verdicts import (
    FASTER,
    NO_DIFFERENCE,
    NOT_LOSSLESS,
    SAMPLING_UNDECIDED,
    SLOWER,
    TOO_FEW,
    UNCHECKED,
    may_win,
)
from specbench_kit.metrics.vocabulary import METRICS
from specbench_kit.reports.comparison import wording
from specbench_kit.reports.comparison.tables import to_csv, to_latex
from specbench_kit.reports.comparison.terminal import winner_of
from specbench_kit.reports.sections import headlines
from specbench_kit.reports.writing.formatting import interval


def slowed(records, factor):
    """Return the run in which every moment of every request takes `factor` times as long."""
    times = {"e2e_s", "ttft_s", "tpot_s", "finished_s"}
    return [replace(r, **{name: getattr(r, name) * factor for name in times}) for r in records]


def noisy(records, seed, spread=0.1):
    rng = np.random.default_rng(seed)
    return [replace(r, e2e_s=r.e2e_s * rng.lognormal(0, spread)) for r in records]


@pytest.fixture
def sides():
    records = in_turn(noisy(records_of(4, 0.7, 12, 24), 1))
    return records, in_turn(plain(records))


def two_runs(tmp_path, first, second, baselines=(None, None)):
    paths = [
        write_run(tmp_path / name, "wisp", records, baseline or ())
        for name, records, baseline in zip("ab", (first, second), baselines, strict=True)
    ]
    return compare(load_runs(paths)[0])


def test_every_bounded_metric_has_an_interval(tmp_path, sides):
    """The CSV has columns for both ends of its interval, which would stay empty."""
    records, baseline = sides
    # Every count of a round varies, since a ratio of two that go together has no interval.
    varied = [
        replace(
            record,
            rounds=[
                replace(
                    step,
                    drafted=step.drafted + (place + number) % 3,
                    submitted=step.drafted - number % 2,
                )
                for number, step in enumerate(record.rounds)
            ],
        )
        for place, record in enumerate(records)
    ]
    comparison = two_runs(tmp_path, varied, noisy(varied, 2), (baseline, noisy(baseline, 3)))
    bounded = {metric.name for metric in METRICS if metric.traits.bounded}
    computed = {name for row in comparison.overall.values() for name in bounded if row.bounds(name)}
    others = {*PIPELINE_RATIOS, *PROACTIVE_RATIOS, *PAUSE_RATIOS, *EXPECTED_RATIOS}
    missing = bounded - computed - others
    assert missing == set(), (
        "bounded, and nothing computes its interval: see RATIOS in metrics/acceptance.py"
    )


def test_a_copy_on_a_slower_machine_shows_no_difference(tmp_path, sides):
    records, baseline = sides
    comparison = two_runs(
        tmp_path, records, slowed(records, 1.1), (baseline, slowed(baseline, 1.1))
    )
    row = comparison.overall["wisp #2"]
    assert row.verdict == NO_DIFFERENCE
    assert row.relative_speed == pytest.approx(1)
    assert row.baseline_ratio == pytest.approx(1 / 1.1)
    assert violations(comparison, Condition.parse("relative_speed<0.95")) == []
    (line,) = violations(comparison, Condition.parse("baseline_ratio<0.95"))
    assert line.startswith("wisp #2: baseline_ratio is 0.9091")
    assert any(
        line.startswith("MACHINE OR ENGINE CHANGED: the baseline of `wisp #2`")
        for line in wording.cautions(comparison)
    )
    assert "baseline / baseline: machine or engine changed" in render(comparison)


def test_a_slower_method_on_a_slower_machine_is_still_slower(tmp_path, sides):
    records, baseline = sides
    worse = slowed(noisy(records, 2, 0.02), 1.1 * 1.3)
    comparison = two_runs(tmp_path, records, worse, (baseline, slowed(baseline, 1.1)))
    assert comparison.overall["wisp #2"].verdict == SLOWER
    assert comparison.overall["wisp #2"].relative_speed == pytest.approx(1 / 1.3, rel=0.05)


def test_without_baselines_raw_times_are_compared_and_the_sentence_says_so(tmp_path, sides):
    records, _ = sides
    comparison = two_runs(tmp_path, records, slowed(records, 1.1))
    assert comparison.overall["wisp #2"].relative_speed == pytest.approx(1 / 1.1)
    assert comparison.overall["wisp #2"].baseline_ratio is None
    assert "compared by raw times, because some run has no baseline" in headlines.of_comparison(
        comparison
    )
    assert "compared only with each other" in headlines.of_comparison(comparison)
    assert "Ratios of raw times" in render(comparison)


def test_one_side_without_a_baseline_leaves_a_ratio_of_times_alone():
    seconds = {(f"q{number}", 0): 1.0 + number for number in range(8)}
    halved = {key: value / 2 for key, value in seconds.items()}
    with_baseline, without_baseline = Side(halved, seconds), Side(seconds, {})
    units = {name: number for number, (name, _) in enumerate(seconds)}
    for side, reference, ratio in (
        (with_baseline, without_baseline, 2.0),
        (without_baseline, with_baseline, 0.5),
    ):
        speed = relative_speed(side, reference, units)
        assert speed is not None
        assert (speed.raw, speed.ratio.value) == (True, pytest.approx(ratio))


def test_below_six_prompts_nothing_prints_an_interval_or_a_verdict(tmp_path):
    write_methods(tmp_path, requests=5, drafts={"wisp": (4, 0.8), "threshold": (3, 0.5)})
    comparison = compare(load_runs([tmp_path])[0])
    for part in comparison.parts:
        for row in part.rows.values():
            assert not any(row.intervals.values())
            assert {row.verdict, row.speedup_verdict} <= {TOO_FEW, None}
    assert "faster" not in headlines.of_comparison(comparison)
    assert "x (" not in to_latex(comparison)
    assert "x (" not in render(comparison)
    header, *lines = (line.split(",") for line in to_csv(comparison).splitlines())
    bounds = [column for column, name in enumerate(header) if name.endswith(("_low", "_high"))]
    assert bounds
    assert not any(line[column] for line in lines for column in bounds)


def test_a_method_that_is_not_lossless_is_neither_reference_nor_winner(tmp_path):
    write_methods(
        tmp_path, drafts={"wisp": (6, 0.95), "threshold": (4, 0.6), "fixed-k:k=3": (3, 0.3)}
    )
    runs, _ = load_runs([tmp_path])
    (fast,) = (run for run in runs if run.method == "wisp")
    assert compare(runs).reference == "wisp"
    fast.summary.lossless.lossless, fast.summary.lossless.errors = False, 2
    comparison = compare(runs)
    assert comparison.reference == "threshold"
    row = comparison.overall["wisp"]
    assert (row.verdict, row.speedup_verdict) == (NOT_LOSSLESS, NOT_LOSSLESS)
    assert "`wisp` is faster, but not lossless" in headlines.of_comparison(comparison)
    with pytest.raises(SkitError, match="--against wisp: its outputs are not lossless"):
        compare(runs, against="wisp")


def test_wrong_outputs_count_where_no_summary_says_so(tmp_path, sides):
    records, baseline = sides
    wrong = [replace(records[0], output_ids=[1, *records[0].output_ids[1:]]), *records[1:]]
    write_run(tmp_path, "wisp", slowed(wrong, 0.5), baseline)
    write_run(tmp_path, "threshold", records, baseline)
    assert compare(load_runs([tmp_path])[0]).reference == "threshold"


def test_what_was_not_checked_wins_only_against_its_like(tmp_path, sides):
    records, baseline = sides
    for method, factor in (("wisp", 0.5), ("threshold", 0.8), ("fixed-k:k=3", 1.0)):
        write_run(tmp_path, method, slowed(records, factor), baseline)
    runs, _ = load_runs([tmp_path])
    by_method = {run.method: run.summary for run in runs}
    by_method["wisp"].lossless = None
    comparison = compare(runs)
    assert comparison.reference == "threshold"
    assert comparison.overall["wisp"].verdict == UNCHECKED
    by_method["wisp"].sampling = SamplingCheck(consistent=True)
    assert compare(runs).reference == "wisp"
    for summary in by_method.values():
        summary.lossless = summary.sampling = None
    comparison = compare(runs, against="fixed-k")
    assert comparison.overall["wisp"].verdict == FASTER
    assert (
        "outputs were not checked, so these methods are compared only with each other"
        in headlines.of_comparison(comparison)
    )


def sampled(comparison_runs, **consistent):
    """Return the comparison of runs whose sampling was checked with these results, by method."""
    for run in comparison_runs:
        run.summary.lossless, run.summary.sampling = (
            None,
            SamplingCheck(consistent=consistent[run.method]),
        )
    return compare(comparison_runs)


def test_the_fastest_that_was_not_shown_to_be_wrong_leads_with_that_word_beside_it(tmp_path, sides):
    records, baseline = sides
    for method, factor in (("wisp", 0.3), ("threshold", 0.5), ("svip", 0.8)):
        write_run(tmp_path, method, slowed(records, factor), baseline)
    runs, _ = load_runs([tmp_path])
    comparison = sampled(runs, wisp=False, threshold=None, svip=True)
    assert comparison.reference == winner_of(comparison) == "threshold"
    assert comparison.overall["threshold"].speedup_verdict == SAMPLING_UNDECIDED
    headline = headlines.of_comparison(comparison)
    assert "with a distribution that is undecided, because too few tokens were drawn" in headline
    assert "`wisp` is faster, but not lossless" in headline
    assert "were not checked" not in headline


def test_what_is_slower_than_plain_decoding_never_leads_as_the_fastest(tmp_path, sides):
    """Two prompts are too few to show that anything is slower."""
    records, baseline = sides
    for requests in (2, len(records)):
        out = tmp_path / str(requests)
        for method, factor in (("wisp", 1.2), ("threshold", 1.1)):
            write_run(out, method, [*slowed(baseline[:requests], factor)], baseline[:requests])
        comparison = compare(load_runs([out])[0])
        assert comparison.reference == "threshold"
        assert winner_of(comparison) in ("", "autoregressive")
        assert headlines.of_comparison(comparison).startswith(
            "no lossless method here is faster than autoregressive decoding; `threshold`: 0.909x"
        )
    assert "no lossless method" not in headlines.of_comparison(
        compare(load_runs([out])[0], against="wisp")
    )


OUTPUTS = {"compared": 1, "identical": 1, "ties": 0, "errors": 0}


@pytest.mark.parametrize(
    ("lossless", "sampling", "allowed"),
    [
        (True, None, True),
        (None, True, True),
        (False, None, False),
        (True, False, False),
        (None, None, None),
    ],
)
def test_a_run_may_win_on_either_check_and_on_no_failed_one(lossless, sampling, allowed):
    summary = run_summary(
        summary_of([], lossless=OUTPUTS | {"lossless": lossless}, sampling={"consistent": sampling})
    )
    assert may_win(summary) is allowed


def test_a_batch_is_one_unit_in_the_order_of_admission():
    """Three places: the fourth request starts when the second ends, so that ends come in another order than starts."""
    ends = {"a": (0, 9), "b": (0, 2), "c": (0, 5), "d": (2, 3), "e": (3, 4), "f": (4, 8)}
    records = [
        replace(record, request_id=name, e2e_s=float(end - start), finished_s=float(end))
        for record, (name, (start, end)) in zip(
            records_of(4, 0.7, 6, 8), sorted(ends.items(), key=lambda i: i[1][1]), strict=True
        )
    ]
    assert {name: units_of(records, 3)[name] for name in "abcdef"} == {
        **dict.fromkeys("abc", 0),
        **dict.fromkeys("def", 1),
    }


def test_batches_are_resampled_whole(tmp_path, sides):
    records, baseline = sides
    config = load_runs([write_run(tmp_path / "one", "wisp", records, baseline)])[0][0].fields.config
    narrow = write_run(
        tmp_path / "two", "wisp", records, baseline, config=asdict(config) | {"batch_size": 2}
    )
    wide = write_run(
        tmp_path / "three", "wisp", records, baseline, config=asdict(config) | {"batch_size": 3}
    )
    rows = [compare(load_runs([path])[0]).overall["wisp"] for path in (narrow, wide)]
    assert [row.speedup_units for row in rows] == [6, 4]
    assert rows[0].intervals["speedup"] is not None
    assert (rows[1].intervals["speedup"], rows[1].speedup_verdict) == (None, TOO_FEW)


def test_ends_that_look_alike_get_the_digits_that_tell_them_apart():
    assert interval([1.5501, 1.7]) == "1.55–1.70"
    assert interval([1.25012, 1.25018]) == "1.2501–1.2502"
