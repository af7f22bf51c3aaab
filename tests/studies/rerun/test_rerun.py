"""A run is run again from its run.json, and what differs is said."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import (
    READINGS,
    Rows,
    TinyPair,
    copy_model,
    error_line,
    read_object,
    read_rows,
    skit,
    skit_here,
    write_rows,
)
from msgspec import structs

from specbench_kit.core.option import options_in, recorded_values
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.decoding.constraint import parse_constraint
from specbench_kit.decoding.lossy import parse_lossy
from specbench_kit.metrics.shapes import RecomputedLogits
from specbench_kit.runs.document import RunConfig, RunDocument
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.rerun.options import RerunOptions
from specbench_kit.studies.rerun.run import restore_settings

PROMPTS: Rows = [
    {"id": "d1", "category": "chat", "turns": ["Who was first?", "And why?"]},
    {"id": "q1", "category": "maths", "prompt": "How many?"},
    {"id": "q2", "category": "maths", "prompt": "How often?"},
]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("data") / "prompts.jsonl", *PROMPTS)


def bench(prompts: Path, tiny: TinyPair, out: Path, *options: object) -> Path:
    """The run directory of a benchmark."""
    small = ("--dataset", prompts, "--max-new-tokens", 12, "--out", out, *tiny.options, *options)
    done = skit_here("bench", *small)
    assert done.returncode == 0, done.stderr
    (run,) = (file.parent for file in out.glob("*/run.json"))
    return run


@pytest.fixture(scope="module")
def run(prompts: Path, tiny: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = (
        "--method",
        "fixed-k:k=3",
        "--repeats",
        2,
        "--limit",
        2,
        "--seed",
        5,
        "--batch-size",
        2,
    )
    return bench(prompts, tiny, tmp_path_factory.mktemp("first"), *options)


def again(run: Path, tiny: TinyPair, prompts: Path, out: Path, *options: object) -> JsonObject:
    """Return as JSON what `skit rerun` says of a run."""
    done = skit_here(
        "rerun", run, "--data-dir", prompts.parent, *tiny.options, "--out", out, "--json", *options
    )
    assert done.returncode == 0, done.stderr
    document: JsonObject = json.loads(done.stdout.splitlines()[-1])
    return document


def test_the_same_machine_gives_the_same_run(
    run: Path, prompts: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    document = again(run, tiny, prompts, tmp_path)
    differences = document["differences"]
    count = len(read_rows(run / "requests.jsonl"))
    assert differences["outputs"] == differences["rounds"] == {"equal": count, "compared": count}
    assert (differences["environment"], differences["missing"]) == ({}, 0)
    assert differences["time_ratio"] > 0 < differences["baseline_time_ratio"]
    second = Path(document["run_dirs"][0])
    first, again_run = read_object(run / "run.json"), read_object(second / "run.json")
    for name in ("method", "dataset", "models", "config", "requests"):
        assert again_run[name] == first[name]
    assert again_run["rerun_of"] == {"run": run.name, "started_at": first["started_at"]}
    assert read_object(second / "rerun.json") == differences


def test_times_of_a_disturbed_machine_are_called_so_before_they_are_given(
    run: Path, prompts: Path, tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(READINGS, str(Path(__file__).parents[2] / "busy_machine.json"))
    done = skit_here("rerun", run, "--data-dir", prompts.parent, *tiny.options, "--out", tmp_path)
    text = " ".join(done.stdout.split())
    assert text.index("now: DISTURBED MACHINE: ") < text.index(
        "speedup on a typical prompt, before and now: "
    )
    assert "THE TIMES BELOW ARE NOT VALID" in text
    assert "before: DISTURBED MACHINE" not in text


def test_what_changed_is_named(run: Path, prompts: Path, tiny: TinyPair, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(run, changed)
    described = read_object(run / "run.json")
    described["versions"]["torch"] = "1.0"
    described["hardware"]["torch_threads"] = 99
    (changed / "run.json").write_text(json.dumps(described))
    rows = read_rows(run / "requests.jsonl")
    rows[0]["output_ids"][-1] ^= 1
    rows[1]["rounds"][0]["accepted"] += 1
    write_rows(changed / "requests.jsonl", *rows[:-1])
    done = skit_here(
        "rerun", changed, "--data-dir", prompts.parent, *tiny.options, "--out", tmp_path / "again"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("versions.torch: 1.0 before, ")]
    assert [line for line in lines if line.startswith("hardware.torch_threads: 99 before, ")]
    compared = len(rows) - 1
    told = f"Not all of it came out again: {compared - 1} of {compared} outputs are equal, and "
    assert [line for line in lines if line.startswith(told)]
    assert f"outputs: {compared - 1} of {compared} equal" in lines
    assert (
        f"rounds: {compared - 1} of {compared} requests with the same drafts and acceptances"
        in lines
    )
    assert "requests that finished in one of the two runs only: 1" in lines


def test_a_modelled_run_is_repeated_to_the_last_digit(
    prompts: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    options = ("--method", "specedge", "--deployment", "specedge", "--set", "link.rtt_s=0.03")
    first = bench(prompts, tiny, tmp_path / "first", *options)
    differences = again(first, tiny, prompts, tmp_path / "again")["differences"]
    assert differences["time_ratio"] == differences["baseline_time_ratio"] == 1.0
    assert differences["rounds"]["equal"] == 4


def test_a_sampled_run_is_repeated_by_its_seeds(
    prompts: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    sampling = ("--temperature", 0.9, "--top-k", 40, "--seed", 3)
    first = bench(prompts, tiny, tmp_path / "first", "--method", "threshold", *sampling)
    assert again(first, tiny, prompts, tmp_path / "again")["differences"]["outputs"] == {
        "equal": 4,
        "compared": 4,
    }


def test_a_lossy_run_is_repeated_by_its_rule(
    prompts: Path, tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its outputs differ in is the rule's doing: no forward is made to ask whether rounding explains it."""
    method = ("--method", "fixed-k:k=3")
    monkeypatch.setattr(RecomputedLogits, "plain", lambda *_: pytest.fail("a forward was made"))
    first = bench(prompts, tiny, tmp_path / "first", *method, "--lossy", "typical:epsilon=0")
    lossless_part = read_object(first / "summary.json")["lossless"]
    assert lossless_part["errors"] > 0
    assert lossless_part["ties"] == lossless_part["unjudged"] == 0
    lossless = bench(prompts, tiny, tmp_path / "lossless", *method)
    rounds, lossless_rounds = (
        [row["rounds"] for row in read_rows(run / "requests.jsonl")] for run in (first, lossless)
    )
    assert [len(own) for own in rounds] < [len(own) for own in lossless_rounds]
    document = again(first, tiny, prompts, tmp_path / "again")
    assert document["differences"]["rounds"] == {"equal": 4, "compared": 4}
    assert (
        read_object(Path(document["run_dirs"][0]) / "run.json")["config"]
        == read_object(first / "run.json")["config"]
    )


def test_a_replayed_run_needs_its_trace_and_no_models(
    prompts: Path, tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "deep" / "trace.parquet"
    trace.parent.mkdir()
    recorded = ("--dataset", prompts, "--max-new-tokens", 12, *tiny.options, "--max-draft", 4)
    assert skit_here("record", *recorded, "--out", trace).returncode == 0
    replay = ("bench", "--method", "fixed-k:k=3", "--replay", trace, "--out", tmp_path / "first")
    assert skit_here(*replay).returncode == 0
    (first,) = (tmp_path / "first").iterdir()
    done = skit_here("rerun", first, "--replay", trace, "--out", tmp_path / "second", "--json")
    differences = json.loads(done.stdout.splitlines()[-1])["differences"]
    assert (differences["rounds"]["equal"], differences["time_ratio"]) == (4, 1.0)
    assert (
        "Repeated: 4 of 4 outputs are equal, and 4 of 4 requests have the same drafts"
        in " ".join(done.stderr.split())
    )
    line = error_line(skit_here("rerun", first, "--out", tmp_path / "again"))
    assert line == "the run replayed the trace trace.parquet: say where it is with --replay"
    monkeypatch.chdir(trace.parent)
    assert skit_here("rerun", first, "--out", tmp_path / "third").returncode == 0


def test_a_run_of_a_bundled_trace_that_a_file_of_options_named_is_repeated(tmp_path: Path) -> None:
    options = tmp_path / "options.toml"
    options.write_text('replay = "qwen2.5-coder"\nlimit = 2\n')
    assert (
        skit_here(
            "bench", "--config", options, "--method", "fixed-k", "--out", tmp_path / "first"
        ).returncode
        == 0
    )
    (first,) = (tmp_path / "first").iterdir()
    done = skit_here("rerun", first, "--out", tmp_path / "second")
    assert done.returncode == 0, done.stderr


def test_a_policy_whose_code_has_changed_since_is_no_repetition(
    prompts: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    """Its options tell so, or a replay that makes other rounds: either ends with exit code 1 and says it first."""
    trace = tmp_path / "trace.parquet"
    recorded = ("--dataset", prompts, "--max-new-tokens", 12, *tiny.options, "--max-draft", 4)
    assert skit_here("record", *recorded, "--out", trace).returncode == 0
    assert (
        skit_here(
            "bench", "--method", "fixed-k:k=3", "--replay", trace, "--out", tmp_path / "a"
        ).returncode
        == 0
    )
    (first,) = (tmp_path / "a").iterdir()
    rounds, options = tmp_path / "rounds", tmp_path / "options"
    shutil.copytree(first, rounds)
    shutil.copytree(first, options)
    rows = read_rows(first / "requests.jsonl")
    rows[1]["rounds"][0]["drafted"] += 1
    write_rows(rounds / "requests.jsonl", *rows)
    described = read_object(first / "run.json")
    described["options"]["sure"] = 0.6
    (options / "run.json").write_text(json.dumps(described))
    for changed, words in (
        (
            rounds,
            "NOT REPEATED: a replay makes the same rounds unless code, predictor or profiles changed; 4 of 4",
        ),
        (
            options,
            "NOT THE SAME POLICY: its code has changed since the first run, for its options differ (sure); 4 of",
        ),
    ):
        done = skit_here("rerun", changed, "--replay", trace, "--out", tmp_path / "again")
        assert done.returncode == 1, done.stderr
        assert " ".join(done.stdout.split()).startswith(words)


def test_models_and_prompts_that_cannot_be_found_are_asked_for(
    run: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    line = error_line(skit_here("rerun", run, "--out", tmp_path))
    assert (
        line
        == "the target 'target' was in a folder that the run does not name: say where with --target"
    )
    line = error_line(skit_here("rerun", run, *tiny.options, "--out", tmp_path))
    advice = "in a folder that the run does not name: name the folder with --data-dir"
    assert line == f"the prompts were in a file prompts.jsonl {advice}"
    assert list(tmp_path.iterdir()) == []


def test_other_models_and_prompts_are_refused(
    run: Path, prompts: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    changed = copy_model(tiny.target, tmp_path / "other", initializer_range=0.5)
    options = ("--draft", tiny.draft, "--data-dir", prompts.parent, "--out", tmp_path / "out")
    line = error_line(skit_here("rerun", run, "--target", changed, *options))
    assert line.startswith("the target other is not that of the run (hash ")
    write_rows(
        tmp_path / "prompts.jsonl",
        *PROMPTS[:2],
        {"id": "q2", "prompt": "How seldom?"},
        {"id": "q3", "prompt": "?"},
    )
    line = error_line(
        skit_here("rerun", run, *tiny.options, "--data-dir", tmp_path, "--out", tmp_path / "out")
    )
    assert line.startswith(
        "the prompts of prompts (prompts.jsonl) are not those of the run (SHA-256 "
    )
    assert not (tmp_path / "out").exists()


def test_a_run_on_a_sample_is_repeated_on_the_sample(tiny: TinyPair, tmp_path: Path) -> None:
    options = (
        "--method",
        "fixed-k",
        "--limit",
        2,
        "--max-new-tokens",
        4,
        "--out",
        tmp_path / "first",
        *tiny.options,
    )
    assert skit("bench", *options, "--dataset", "mt-bench").returncode == 0
    (run,) = (tmp_path / "first").iterdir()
    assert read_object(run / "run.json")["dataset"]["source"] == "sample"
    assert skit("rerun", run, *tiny.options, "--out", tmp_path / "again").returncode == 0
    (second,) = (tmp_path / "again").iterdir()
    assert read_object(second / "run.json")["dataset"] == read_object(run / "run.json")["dataset"]


def test_a_folder_stands_for_the_only_run_in_it(
    run: Path, prompts: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    document = again(run.parent, tiny, prompts, tmp_path / "again")
    assert document["differences"]["missing"] == 0
    shutil.copytree(run, tmp_path / "two" / "a")
    shutil.copytree(run, tmp_path / "two" / "b")
    line = error_line(skit_here("rerun", tmp_path / "two"))
    assert (
        line
        == f"{tmp_path / 'two'} holds 2 runs: name one of them, such as {tmp_path / 'two' / 'a'}"
    )


def test_what_is_no_run_of_bench_is_refused(run: Path, tmp_path: Path) -> None:
    assert "No such file" in error_line(skit_here("rerun", tmp_path))
    (tmp_path / "run.json").write_text('{"schema_version": 1, "command": "sweep"}')
    assert error_line(skit_here("rerun", tmp_path)) == (
        "run.json names no method, models and settings: only runs of skit bench can be run again"
    )
    described = read_object(run / "run.json") | {"imported": {"tool": "Spec-Bench"}}
    (tmp_path / "run.json").write_text(json.dumps(described))
    assert error_line(skit_here("rerun", tmp_path)) == (
        "the run was imported from Spec-Bench, which would have to run it again"
    )
    described = read_object(run / "run.json")
    described["config"]["processes"] = 3
    (tmp_path / "run.json").write_text(json.dumps(described))
    assert error_line(skit_here("rerun", tmp_path)).startswith(
        "the run was decoded in several processes, and a rerun"
    )


OTHERWISE: dict[str, Any] = {
    "device": "cuda:0",
    "dtype": "bfloat16",
    "executor": "transformers+native",
    "max_new_tokens": 7,
    "batch_size": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "seed": 4,
    "limit": 2,
    "repeats": 3,
    "baseline": False,
    "fewest_requests": 64,
    "draft_top_n": 6,
    "lossy": parse_lossy("typical:epsilon=0.2"),
    "constraint": parse_constraint('json-schema:{"type": "boolean"}'),
    "skip_forced": False,
    "launch": "processes",
}
"""A value of every option that a run records, other than its default; several processes are not run again."""


def test_every_option_that_a_run_records_is_declared_and_restored() -> None:
    recorded = {field.name: option.recorded for field, _, option in options_in(BenchSettings)}
    names = {name for name, kind in recorded.items() if kind != "no"}
    assert names == OTHERWISE.keys() | {"processes"}
    assert names <= {field.name for field in structs.fields(RunConfig)}
    # A grammar, and what only a grammar has, goes with neither of the other two.
    for apart in ({"constraint", "skip_forced"}, {"lossy", "launch"}):
        chosen = OTHERWISE.keys() - apart
        _require_restored({name: OTHERWISE[name] for name in chosen}, recorded)


def _require_restored(otherwise: dict[str, Any], recorded: dict[str, str]) -> None:
    settings = BenchSettings(("fixed-k",), **otherwise)
    config = recorded_values(settings) | {
        name: value for name, value in otherwise.items() if recorded[name] == "as found"
    }
    config = json.loads(json.dumps(config))
    run = RunDocument.read(
        {"schema_version": 1, "method": "fixed-k", "trace": {}, "config": config}
    )
    restored = restore_settings(run, config, RerunOptions(), Path("out"), ())
    assert {name: getattr(restored, name) for name in otherwise} == otherwise


def test_a_draft_model_on_another_device_is_put_there_again() -> None:
    config = {"device": "cuda:0", "draft_device": "cpu", "dtype": "bfloat16"}
    run = RunDocument.read(
        {"schema_version": 1, "method": "fixed-k", "trace": {}, "config": config}
    )
    assert restore_settings(run, config, RerunOptions(), Path("out"), ()).device == "cuda:0+cpu"
