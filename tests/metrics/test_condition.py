"""`--fail-if`: metrics by name, and nothing else."""

import pytest
from report_builders import make_row
from run_builders import in_turn, plain, records_of, write_methods, write_run

from specbench_kit.core.errors import SkitError
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.gate import Condition, require_readable, violations
from specbench_kit.metrics.latency import PHASES
from specbench_kit.metrics.losslessness import OutputCounts
from specbench_kit.metrics.run_data import load_runs

ROW = make_row(
    speedup=1.2,
    acceptance_rate=0.7,
    wdt=0.05,
    intervals={"speedup": [1.1, 1.3]},
    itl={"mean": 0.02, "p50": 0.01, "p95": 0.03, "p99": 0.04},
    phase_seconds=dict.fromkeys(PHASES, 0.0) | {"draft": 2.0},
    lossless=OutputCounts(errors=1, ties=0, identical=7, compared=8),
)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("speedup<0.95", False),
        ("speedup < 1.25", True),
        ("speedup<=1.2x", True),
        ("speedup>1.2", False),
        ("speedup.low<1.15", True),
        ("speedup.high<1", False),
        ("acceptance_rate>=70%", True),
        ("wdt>40ms", True),
        ("itl.p99>50ms", False),
        ("itl.p99 > .035", True),
        ("phase_seconds.draft>1.5s", True),
        ("lossless.errors>0", True),
        ("speedup<1.3e0", True),
    ],
)
def test_a_condition_reads_as_it_looks(text, holds):
    condition = Condition.parse(text)
    assert condition.holds(condition.value(ROW), condition.limit) is holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speedup", "expected a metric, <, <=, > or >=, and a number"),
        ("speedup<fast", "expected a metric"),
        ("speedup==1", "expected a metric"),
        ("__import__('os')<1", "expected a metric"),
        ("speedup<1 or tokens>1", "expected a metric"),
        ("spedup<1", r"unknown metric 'spedup' \(did you mean 'speedup'\?\)"),
        ("itl>1", "itl needs one of itl.mean, itl.p50"),
        ("itl.p42>1", "itl needs one of"),
        ("speedup.mid<1", "speedup needs one of speedup.low, speedup.high"),
        ("phase_seconds.sleep>1", "phase_seconds needs one of phase_seconds.prefill"),
        ("itl.p99>50x", "itl is not measured in x; its units: s, ms, us"),
        ("speedup<95ms", "speedup is not measured in ms; its units: x, %"),
        ("acceptance_length<2s", "acceptance_length is not measured in s; its units: none"),
    ],
)
def test_anything_else_is_an_error_that_says_what_is_expected(text, message):
    with pytest.raises(SkitError, match=message):
        Condition.parse(text)


def test_every_method_that_fulfils_it_is_named_with_value_and_run(comparison):
    slowest = min((row.speedup, label) for label, row in comparison.overall.items() if row.speedup)
    (line,) = violations(comparison, Condition.parse(f"speedup<{slowest[0] + 1e-6}"))
    (series,) = (candidate for candidate in comparison.series if candidate.label == slowest[1])
    assert line.startswith(f"{slowest[1]}: speedup is {slowest[0]:.4g} (speedup<")
    assert line.endswith(f"run {series.runs['gsm8k'].name}")
    assert violations(comparison, Condition.parse("speedup<0.1")) == []


def test_the_reference_is_not_held_against_itself(comparison):
    lines = violations(comparison, Condition.parse("relative_speed<100"))
    assert len(lines) == len(comparison.series) - 2
    assert not [line for line in lines if line.startswith(comparison.reference)]


def test_nothing_passes_for_want_of_what_cannot_be_read(tmp_path):
    paths = write_methods(tmp_path)
    require_readable(compare(load_runs([tmp_path])[0]))
    (paths[0] / "requests.jsonl").write_text("{}\n")
    runs, problems = load_runs([tmp_path])
    with pytest.raises(
        SkitError,
        match=r"cannot be judged, since not all runs could be read: .*no finished request",
    ):
        require_readable(compare(runs, problems=problems))


def test_one_run_alone_cannot_pass_a_comparison(tmp_path):
    records = in_turn(records_of(4, 0.7, 8, 24))
    write_run(tmp_path, "wisp", records, in_turn(plain(records)))
    comparison = compare(load_runs([tmp_path])[0])
    with pytest.raises(SkitError, match="there is no other method than wisp to judge"):
        violations(comparison, Condition.parse("relative_speed<0.95"))


def test_a_method_without_a_value_is_an_error_and_no_pass(tmp_path):
    records = in_turn(records_of(4, 0.7, 8, 24))
    write_run(tmp_path, "wisp", records)
    write_run(tmp_path, "threshold", records, in_turn(plain(records)))
    comparison = compare(load_runs([tmp_path])[0])
    with pytest.raises(SkitError, match="wisp has no value for it"):
        violations(comparison, Condition.parse("speedup<0.5"))
