"""What must be equal before runs are compared, and how a difference is named."""

import csv
from io import StringIO

import pytest
from report_builders import make_run
from run_builders import in_turn, plain, records_of, write_run

from specbench_kit.deployments.description import describe_time
from specbench_kit.deployments.loading import load
from specbench_kit.errors import SkitError
from specbench_kit.reports import comparison_wording as wording
from specbench_kit.reports.comparison import compare
from specbench_kit.reports.comparison_markdown import render
from specbench_kit.reports.run_data import load_runs
from specbench_kit.reports.tables import to_csv

BASE = make_run()


def deployment(name, *replaced):
    return describe_time(load(name, replaced))


def pair(tmp_path, second, first=None):
    records = in_turn(records_of(4, 0.7, 8, 24))
    for record in records:
        record.time_kind = second.get("time_kind", "measured")
    write_run(tmp_path, "threshold", records, **(first or {}))
    write_run(tmp_path, "wisp", records, **second)
    return load_runs([tmp_path])[0]


def model(role, digest):
    return BASE["models"] | {role: BASE["models"][role] | {"hash": digest}}


@pytest.mark.parametrize(
    ("second", "named"),
    [
        (
            {"dataset": BASE["dataset"] | {"digest": "ee" * 32}},
            "prompts of gsm8k: 30 prompts, digest d1d1d1d1d1d1 (threshold), 30 prompts, digest eeeeeeeeeeee (wisp)",
        ),
        (
            {"dataset": BASE["dataset"] | {"name": "alpaca"}},
            "dataset: wisp did not run on gsm8k",
        ),
        ({"models": model("target", "99" * 32)}, "target model: bundled-target, hash abababababab (threshold)"),
        ({"models": model("draft", "99" * 32)}, "draft model: bundled-draft, hash cdcdcdcdcdcd (threshold)"),
        ({"config": BASE["config"] | {"dtype": "bfloat16"}}, "dtype: float32 (threshold), bfloat16 (wisp)"),
        ({"config": BASE["config"] | {"max_new_tokens": 96}}, "max_new_tokens: 128 (threshold), 96 (wisp)"),
        (
            {"config": BASE["config"] | {"temperature": 0.8}},
            "sampling: greedy (threshold), temperature 0.8, top-p 1, seed 7 (wisp)",
        ),
        (
            {"config": BASE["config"] | {"batch_size": 4, "effective_batch_size": 1}},
            "effective batch size: as asked (threshold), 1 where 4 was asked (wisp)",
        ),
        (
            {"config": BASE["config"] | {"batch_size": 4}},
            "effective batch size: as asked (threshold), not stated where 4 was asked (wisp)",
        ),
        ({"time_kind": "modelled"}, "time: measured (threshold), modelled (wisp)"),
    ],
)
def test_what_differs_is_named_and_refused_unless_forced(tmp_path, second, named):
    runs = pair(tmp_path, second)
    with pytest.raises(SkitError, match="these runs cannot be compared, they differ in ") as refusal:
        compare(runs)
    assert named in str(refusal.value)
    assert str(refusal.value).endswith(": --force compares anyway")
    forced = compare(runs, force=True)
    assert any(named in line for line in forced.overruled)
    assert wording.where(forced).startswith("FORCED: these runs differ. ")
    assert any(line.startswith("FORCED COMPARISON: these runs differ in ") for line in wording.cautions(forced))


def test_deployments_differ_by_name_or_by_field(tmp_path):
    runs = pair(tmp_path / "field", deployment("wan", "link.rtt_s=0.5"), deployment("wan"))
    rtt_s = deployment("wan")["deployment"]["link"]["rtt_s"]
    with pytest.raises(SkitError, match=rf"they differ in deployment: link.rtt_s {rtt_s} / 0.5: --force"):
        compare(runs)
    runs = pair(tmp_path / "name", deployment("specedge"), deployment("wan"))
    with pytest.raises(SkitError, match=r"deployment: wan \(threshold\), specedge \(wisp\)"):
        compare(runs)


def test_runs_of_one_method_are_told_apart_by_their_dataset(tmp_path):
    records = in_turn(records_of(4, 0.7, 8, 24))
    write_run(tmp_path, "wisp", records)
    changes = {"dataset": BASE["dataset"] | {"name": "alpaca"}, "config": BASE["config"] | {"dtype": None}}
    write_run(tmp_path, "wisp", records, **changes)
    with pytest.raises(SkitError, match=r"dtype: float32 \(wisp on gsm8k\), not stated \(wisp on alpaca\)"):
        compare(sorted(load_runs([tmp_path])[0], key=lambda run: run.dataset["name"], reverse=True))


def test_machines_are_not_compared_with_models(tmp_path):
    forced = compare(pair(tmp_path, {"time_kind": "modelled"}), force=True)
    assert "CPU: Some CPU (threshold), modelled (wisp)" in forced.remarks


def test_a_forced_report_gives_every_row_its_own_clock(tmp_path):
    forced = compare(pair(tmp_path, deployment("wan")), force=True)
    assert wording.where(forced).endswith("; measured time and modelled time (wan)")
    kinds = {row["method"]: row["time_kind"] for row in csv.DictReader(StringIO(to_csv(forced)))}
    assert kinds == {"threshold": "measured", "wisp": "modelled"}
    report = render(forced)
    assert "| time | measured by this machine's clock / modelled: what the deployment 'wan' would take" in report
    assert report.count("## Deployment (modelled)") == 1


def test_machine_batch_size_and_commit_are_remarked_on_and_not_refused(tmp_path):
    second = {
        "config": BASE["config"] | {"batch_size": 4, "effective_batch_size": 4},
        "hardware": BASE["hardware"] | {"torch_threads": 2},
        "git_commit": "fedcba9876543210",
    }
    found = compare(pair(tmp_path, second))
    assert list(found.remarks) == [
        "batch size: 1 (threshold), 4 (wisp)",
        "threads: 4 (threshold), 2 (wisp)",
        "git commit: 0123456789ab (threshold), fedcba987654 (wisp)",
    ]
    assert "The runs differ in batch size: 1 (threshold), 4 (wisp)." in wording.cautions(found)


def test_seeds_matter_only_where_tokens_are_sampled(tmp_path):
    runs = pair(tmp_path, {"config": BASE["config"] | {"seed": 8}})
    assert compare(runs).overruled == []


def test_equal_runs_have_nothing_to_overrule(tmp_path):
    records = in_turn(records_of(4, 0.7, 8, 24))
    for method in ("threshold", "wisp"):
        write_run(tmp_path, method, records, in_turn(plain(records)))
    found = compare(load_runs([tmp_path])[0])
    assert (found.overruled, found.remarks, found.problems) == ([], [], [])
