"""Reports say what a method was set to, whether that was given or a default."""

import csv
from io import StringIO

import pytest
from msgspec.structs import replace
from report_builders import deployment_description, make_run, run_document, run_summary, summary_of
from run_builders import in_turn, plain, records_of, write_run

from specbench_kit.methods.spec import describe_method, parse_method, resolved_options
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.metrics.run_summary import RunSummary
from specbench_kit.metrics.setting import describe_inputs, describe_options, method_label
from specbench_kit.reports import render_markdown
from specbench_kit.reports.comparison import report as comparison_report
from specbench_kit.reports.comparison.scene import styles_of
from specbench_kit.reports.comparison.tables import to_csv, to_latex
from specbench_kit.reports.run import report as run_report
from specbench_kit.reports.sections import methods
from specbench_kit.runs.document import RunConfig, RunDescription, RunDocument


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("fixed-k", "fixed-k (k=4)"),
        ("fixed-k:k=4", "fixed-k (k=4)"),
        ("autoregressive", "autoregressive"),
        ("threshold", "threshold (threshold=0.4)"),
        ("threshold:adaptive=true", "threshold (adaptive=true)"),
        ("specedge:tree=chain,beams=8,branch=2", "specedge (beams=8, branch=2, tree=chain)"),
        ("specinfer", "specinfer (branching=1-1-3-1-1-1-1-1)"),
        ("wisp", "wisp (predictor=auto)"),
    ],
)
def test_a_label_holds_what_was_given_and_what_matters_first(spec: str, expected: str) -> None:
    assert method_label(RunDescription(method=spec, options=resolved_options(spec))) == expected


def test_a_run_of_an_older_kit_keeps_its_spec() -> None:
    assert method_label(RunDescription(method="fixed-k:k=3")) == "fixed-k:k=3"


def test_every_option_and_everything_found_is_written_out() -> None:
    run = RunDescription(
        options=resolved_options("wisp:max_draft=3"),
        uses={"predictor": {"family": "logistic", "threshold": 0.25}, "stages": [1, 2]},
    )
    assert (
        describe_options(run)
        == "predictor=auto, max_draft=3, operating_point=none, send_last=false, score=token, force=false"
    )
    assert describe_inputs(run) == "predictor.family=logistic, predictor.threshold=0.25, stages=1-2"


def test_every_form_of_a_comparison_states_the_options(tmp_path) -> None:
    records = in_turn(records_of(4, 0.7, 8, 24))
    for spec in ("fixed-k", "threshold"):
        write_run(tmp_path, spec, records, in_turn(plain(records)), options=resolved_options(spec))
    comparison = compare(load_runs([tmp_path])[0])
    report = render_markdown.render(comparison_report.build(comparison))
    assert "| `fixed-k` | k=4 | – |" in report
    assert (
        "| `threshold` | threshold=0.4, max_draft=20, schedule=constant, adaptive=false, unit=request | – |"
        in report
    )
    assert "`fixed-k (k=4)`" in report
    assert "fixed-k (k=4)" in styles_of(comparison)
    assert "Options: fixed-k (k=4); threshold" in to_latex(comparison)
    rows = {row["method"]: row["options"] for row in csv.DictReader(StringIO(to_csv(comparison)))}
    assert rows["fixed-k (k=4)"] == "k=4"
    assert rows["autoregressive"] == ""


def test_the_report_of_one_run_states_the_options(tmp_path) -> None:
    records = in_turn(records_of(4, 0.7, 8, 24))
    path = write_run(tmp_path, "fixed-k", records, options={"k": 4}, uses={"found": 1})
    (run,) = load_runs([path])[0]
    (result,) = compare([run]).runs
    report = render_markdown.render(run_report.build(result))
    assert report.startswith("# `fixed-k (k=4)` on gsm8k\n")
    assert "| `fixed-k` | k=4 | found=1 |" in report


def test_one_setting_named_in_two_ways_is_one_method_over_two_datasets(tmp_path) -> None:
    records = in_turn(records_of(4, 0.7, 8, 24))
    for spec, name in (("fixed-k", "gsm8k"), ("fixed-k:k=4", "alpaca"), ("fixed-k:k=2", "gsm8k")):
        dataset = make_run()["dataset"] | {"name": name}
        write_run(tmp_path, spec, records, options=resolved_options(spec), dataset=dataset)
    comparison = compare(load_runs([tmp_path])[0], force=True)
    assert {series.label: set(series.runs) for series in comparison.series} == {
        "fixed-k (k=4)": {"gsm8k", "alpaca"},
        "fixed-k (k=2)": {"gsm8k"},
    }


def link_run(
    spec: str, *, seen: bool, drafted: int = 3, placement: str = "edge", **changes: object
) -> tuple[RunDocument, RunSummary]:
    """The run.json and the summary of a latency-aware method beyond a link."""
    latencies = {"draft": {}, "verify": {}, **({"link": {"rtt_s": 0.04}} if seen else {})}
    run = run_document({"method": spec, "options": {}, "uses": {"latencies": latencies}, **changes})
    run.deployment = deployment_description(placement=placement)
    summary = run_summary(summary_of([]))
    summary.overall.drafted = drafted
    return run, summary


def notes_on(*runs: tuple[RunDocument, RunSummary]) -> str:
    return " ".join(methods.link_notes([run for run, _ in runs], [summary for _, summary in runs]))


def test_a_report_says_which_methods_counted_the_link() -> None:
    runs = [
        link_run("goodput", seen=True),
        link_run("adaspec", seen=True),
        link_run("goodput:link=false", seen=False),
    ]
    assert notes_on(*runs) == (
        "Link: `goodput`, `adaspec` count the link as part of a round; `goodput:link=false` does not, as published for "
        "models in one place."
    )
    assert "`adaspec` drafts nothing, since no draft pays for its way over the link" in notes_on(
        *runs[:1], link_run("adaspec", seen=True, drafted=0)
    )
    assert notes_on(link_run("goodput", seen=False, placement="server")) == ""
    assert notes_on(link_run("fixed-k", seen=False, uses={})) == ""


def test_a_report_names_the_methods_that_take_the_likeliest_tokens_under_sampling() -> None:
    adaspec = run_document({"method": "adaspec", "proposal": "top", "config": {"temperature": 0.7}})
    (line,) = methods.proposal_notes([adaspec, run_document({"method": "fixed-k"})])
    assert line.startswith("Drafted tokens: `adaspec` takes the most probable ones")
    assert methods.proposal_notes([replace(adaspec, config=RunConfig(temperature=0.0))]) == []


@pytest.mark.parametrize(
    ("spec", "proposal"),
    [
        ("fixed-k", None),
        ("fixed-k:proposal=top", "top"),
        ("adaspec", "top"),
        ("suffix", None),
        ("autoregressive", None),
    ],
)
def test_a_run_records_that_its_method_takes_the_likeliest_tokens(
    spec: str, proposal: str | None
) -> None:
    assert describe_method(spec, parse_method(spec)).get("proposal") == proposal


def test_the_line_about_drafts_after_a_pause_shows_both_shares() -> None:
    goodput, fixed = (run_summary(summary_of([])) for _ in range(2))
    goodput.overall.acceptance_after_pause = 0.25
    goodput.overall.acceptance_at_conditional = [0.75, 0.5]
    fixed.overall.acceptance_at_conditional = [0.7]
    runs = [run_document({"method": name}) for name in ("goodput", "fixed-k")]
    (line,) = methods.pause_notes(runs, [goodput, fixed])
    assert line.endswith("accepted there (and after any round): `goodput` 25% (75%).")
    assert methods.pause_notes(runs[1:], [fixed]) == []
