"""What must be equal before runs are compared, and how a difference is named."""

import csv
from io import StringIO

import pytest
from report_builders import make_run
from report_builders import render_comparison as render
from run_builders import in_turn, plain, records_of, write_run

from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import options_in
from specbench_kit.deployments.description import describe_time
from specbench_kit.deployments.loading import load
from specbench_kit.metrics.comparability import obstacles, remarks
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.reports.comparison import wording
from specbench_kit.reports.comparison.tables import to_csv
from specbench_kit.studies.bench.settings import BenchSettings

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


OTHERWISE = {
    "device": {"device": "cuda:0"},
    "dtype": {"dtype": "bfloat16"},
    "executor": {"executors": {"target": "transformers", "draft": "native"}},
    "max_new_tokens": {"max_new_tokens": 7},
    "batch_size": {"batch_size": 3, "effective_batch_size": 3},
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.9},
    "top_k": {"top_k": 5},
    "seed": {"seed": 4},
    "repeats": {"repeats": 3},
    "processes": {"processes": 3},
    "fewest_requests": {"fewest_requests": 64},
    "draft_top_n": {"draft_top_n": 6},
    "lossy": {"lossy": "typical:epsilon=0.2"},
    "constraint": {"constraint": "regex:a+"},
    "skip_forced": {"skip_forced": False},
    "launch": {"launch": "processes"},
}
"""Another value of every option that a run records, as its run.json has it."""
SEEN_OTHERWISE = {"limit": "the prompts differ", "baseline": "a run without one has no speedup"}


def test_every_option_that_a_run_records_is_named_where_runs_differ_in_it(tmp_path):
    names = {
        field.name for field, _, option in options_in(BenchSettings) if option.recorded != "no"
    }
    assert names == OTHERWISE.keys() | SEEN_OTHERWISE.keys()
    config = BASE["config"] | {
        "temperature": 0.7,
        "repeats": 1,
        "executors": {"target": "native", "draft": "native"},
    }
    for name, changed in OTHERWISE.items():
        runs = pair(tmp_path / name, {"config": config | changed}, {"config": config})
        labelled = [(run.method, run) for run in runs]
        assert obstacles(labelled) + remarks(labelled), name


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
        (
            {"models": model("target", "99" * 32)},
            "target model: bundled-target, hash abababababab (threshold)",
        ),
        (
            {"models": model("draft", "99" * 32)},
            "draft model: bundled-draft, hash cdcdcdcdcdcd (threshold)",
        ),
        (
            {"config": BASE["config"] | {"dtype": "bfloat16"}},
            "dtype: float32 (threshold), bfloat16 (wisp)",
        ),
        (
            {"config": BASE["config"] | {"products": "activations in bf16"}},
            "rounding of products: not stated (threshold), activations in bf16 (wisp)",
        ),
        (
            {"config": BASE["config"] | {"max_new_tokens": 96}},
            "max_new_tokens: 128 (threshold), 96 (wisp)",
        ),
        (
            {"config": BASE["config"] | {"temperature": 0.8}},
            "sampling: greedy (threshold), temperature 0.8, top-p 1, seed 7 (wisp)",
        ),
        (
            {"config": BASE["config"] | {"batch_size": 4, "effective_batch_size": 1}},
            "effective batch size: as requested (threshold), 1 where 4 was requested (wisp)",
        ),
        (
            {"config": BASE["config"] | {"batch_size": 4}},
            "effective batch size: as requested (threshold), not stated where 4 was requested (wisp)",
        ),
        (
            {"config": BASE["config"] | {"lossy": "typical:epsilon=0.09,delta=0.3"}},
            "verification: lossless (threshold), typical:epsilon=0.09,delta=0.3 (wisp)",
        ),
        ({"time_kind": "modelled"}, "time: measured (threshold), modelled (wisp)"),
        ({"config": BASE["config"] | {"batch_size": 4}}, "batch size: 1 (threshold), 4 (wisp)"),
    ],
)
def test_what_differs_is_named_and_refused_unless_forced(tmp_path, second, named):
    runs = pair(tmp_path, second)
    with pytest.raises(
        SkitError, match="these runs cannot be compared, they differ in "
    ) as refusal:
        compare(runs)
    assert named.partition(":")[0] in str(refusal.value)
    assert str(refusal.value).endswith("with --force, which names every difference")
    forced = compare(runs, force=True)
    assert any(named in line for line in forced.overruled)
    assert wording.where(forced).startswith("FORCED: these runs differ. ")
    assert any(
        line.startswith("FORCED COMPARISON: these runs differ in ")
        for line in wording.cautions(forced)
    )


def test_a_refusal_names_three_differences_with_both_values_and_counts_the_others(tmp_path):
    config = BASE["config"] | {
        "max_new_tokens": 7,
        "batch_size": 4,
        "effective_batch_size": 4,
        "temperature": 0.5,
    }
    runs = pair(tmp_path, {"config": config, "time_kind": "modelled"})
    with pytest.raises(
        SkitError,
        match=r"they differ in max_new_tokens: \d+ / 7; batch size: 1 / 4; sampling: .* / .*; and in 1 more property: "
        r"give runs of one setting, or all of them with --force, which names every difference$",
    ):
        compare(runs)


def test_deployments_differ_by_name_or_by_field(tmp_path):
    runs = pair(tmp_path / "field", deployment("wan", "link.rtt_s=0.5"), deployment("wan"))
    rtt_s = deployment("wan")["deployment"]["link"]["rtt_s"]
    with pytest.raises(
        SkitError, match=rf"they differ in deployment: link.rtt_s {rtt_s} / 0.5: give runs"
    ):
        compare(runs)
    runs = pair(tmp_path / "name", deployment("specedge"), deployment("wan"))
    with pytest.raises(SkitError, match=r"deployment: wan / specedge: give runs"):
        compare(runs)


def test_runs_of_one_method_are_told_apart_by_their_dataset(tmp_path):
    records = in_turn(records_of(4, 0.7, 8, 24))
    write_run(tmp_path, "wisp", records)
    changes = {
        "dataset": BASE["dataset"] | {"name": "alpaca"},
        "config": BASE["config"] | {"dtype": None},
    }
    write_run(tmp_path, "wisp", records, **changes)
    runs = sorted(load_runs([tmp_path])[0], key=lambda run: run.fields.dataset.name, reverse=True)
    assert compare(runs, force=True).overruled == [
        "dtype: float32 (wisp on gsm8k), not stated (wisp on alpaca)"
    ]


def test_machines_are_not_compared_with_models(tmp_path):
    forced = compare(pair(tmp_path, {"time_kind": "modelled"}), force=True)
    assert "CPU: Some CPU (threshold), modelled (wisp)" in forced.remarks


def test_a_forced_report_gives_every_row_its_own_clock(tmp_path):
    forced = compare(pair(tmp_path, deployment("wan")), force=True)
    assert wording.where(forced).endswith("; measured time and modelled time (wan)")
    kinds = {row["method"]: row["time_kind"] for row in csv.DictReader(StringIO(to_csv(forced)))}
    assert kinds == {"threshold": "measured", "wisp": "modelled"}
    report = render(forced)
    assert (
        "| time | measured by this machine's clock / modelled by the latency models of the deployment 'wan'"
        in report
    )
    assert report.count("## Deployment (modelled)") == 1


def test_machine_and_commit_are_remarked_on_and_not_refused(tmp_path):
    second = {
        "hardware": BASE["hardware"] | {"torch_threads": 2},
        "git_commit": "fedcba9876543210",
    }
    comparison = compare(pair(tmp_path, second))
    assert list(comparison.remarks) == [
        "threads: 4 (threshold), 2 (wisp)",
        "git commit: 0123456789ab (threshold), fedcba987654 (wisp)",
    ]
    assert "The runs differ in threads: 4 (threshold), 2 (wisp)." in wording.cautions(comparison)


STATED = {
    "versions": {"specbench_kit": "0.1.0", "torch": "2.11.0", "transformers": "5.17.0"},
    "git_dirty": False,
    "platform": "Linux-6.1",
    "hardware": BASE["hardware"] | {"physical_cores": 8, "usable_cpus": 4, "memory_gb": 16.0},
    "config": BASE["config"] | {"repeats": 1},
}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (
            {"versions": STATED["versions"] | {"specbench_kit": "0.2.0"}},
            "version of specbench-kit: 0.1.0 (threshold)",
        ),
        (
            {"versions": STATED["versions"] | {"torch": "2.12.0"}},
            "version of torch: 2.11.0 (threshold), 2.12.0 (wisp)",
        ),
        (
            {"versions": STATED["versions"] | {"transformers": "6"}},
            "version of transformers: 5.17.0 (threshold)",
        ),
        ({"git_dirty": True}, "uncommitted changes: no (threshold), yes (wisp)"),
        ({"platform": "macOS-15"}, "operating system: Linux-6.1 (threshold), macOS-15 (wisp)"),
        (
            {"hardware": STATED["hardware"] | {"usable_cpus": 2}},
            "cores: 8 cores, 4 usable (threshold), 8 cores, 2",
        ),
        (
            {"hardware": STATED["hardware"] | {"memory_gb": 32.0}},
            "memory in GB: 16.0 (threshold), 32.0 (wisp)",
        ),
        (
            {"config": STATED["config"] | {"launch": "processes"}},
            "launch: virtual (threshold), processes (wisp)",
        ),
        ({"config": STATED["config"] | {"repeats": 3}}, "repeats: 1 (threshold), 3 (wisp)"),
    ],
)
def test_every_condition_of_a_measurement_is_named(tmp_path, changed, named):
    comparison = compare(pair(tmp_path, STATED | changed, STATED))
    (remark,) = comparison.remarks
    assert remark.startswith(named)


def test_conditions_that_an_older_run_does_not_state_are_passed_over(tmp_path):
    older = {"versions": None, "git_dirty": None, "platform": None}
    stated = {name: STATED[name] for name in ("versions", "git_dirty", "platform")}
    assert list(compare(pair(tmp_path, stated, older)).remarks) == []


def test_prompts_that_the_tokenizer_read_otherwise_are_refused(tmp_path):
    runs = pair(tmp_path, {"prompts": {"q0": "aa"}}, {"prompts": {"q0": "bb"}})
    with pytest.raises(
        SkitError, match=r"they differ in tokens of the prompts of gsm8k: hash \w{12} / hash"
    ):
        compare(runs)
    assert compare(pair(tmp_path / "one", {"prompts": {"q0": "aa"}})).overruled == []


def test_a_default_that_changed_and_a_predictor_trained_again_are_named(tmp_path):
    records = in_turn(records_of(4, 0.7, 8, 24))
    for k, created in ((4, "May"), (5, "June")):
        write_run(
            tmp_path, "fixed-k", records, options={"k": k}, uses={"predictor": {"created": created}}
        )
    assert list(
        compare(sorted(load_runs([tmp_path])[0], key=lambda run: run.fields.options["k"])).remarks
    ) == [
        "options of fixed-k: k=4 (fixed-k (k=4)), k=5 (fixed-k (k=5))",
        "inputs of fixed-k: predictor.created=May (fixed-k (k=4)), predictor.created=June (fixed-k (k=5))",
    ]


def test_seeds_matter_only_where_tokens_are_sampled(tmp_path):
    runs = pair(tmp_path, {"config": BASE["config"] | {"seed": 8}})
    assert compare(runs).overruled == []


def test_equal_runs_have_nothing_to_overrule(tmp_path):
    records = in_turn(records_of(4, 0.7, 8, 24))
    for method in ("threshold", "wisp"):
        write_run(tmp_path, method, records, in_turn(plain(records)))
    comparison = compare(load_runs([tmp_path])[0])
    assert (comparison.overruled, comparison.remarks, comparison.problems) == ([], [], [])
