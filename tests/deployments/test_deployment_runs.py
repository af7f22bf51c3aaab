"""Benchmarks under a deployment: only time changes, and it is the same everywhere."""

import json
import subprocess
from pathlib import Path

import pytest
from command_line import TinyPair, environment, read_object, read_rows, skit, skit_here, write_rows
from trace_builders import made_requests, write_trace

from specbench_kit.core.typed_json import JsonObject

pytestmark = pytest.mark.slow

METHODS = ["fixed-k:k=3", "threshold:max_draft=6"]
DECISIONS = ("drafted", "submitted", "accepted", "committed")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("trace") / "made.parquet"
    write_trace(file, made_requests(12))
    return file


def replayed(
    trace: Path, out: Path, *options: object, methods: list[str] | None = None
) -> dict[str, Path]:
    """The run directory of each method."""
    named = [part for method in methods or METHODS for part in ("--method", method)]
    done = skit_here("bench", "--replay", trace, *named, "--out", out, "--json", *options)
    assert done.returncode == 0, done.stderr
    return {
        read_object(Path(run) / "run.json")["method"]: Path(run)
        for run in json.loads(done.stdout)["run_dirs"]
    }


def decisions(run: Path, name: str = "requests.jsonl") -> JsonObject:
    return {
        row["request_id"]: (
            row["output_ids"],
            [[step[key] for key in DECISIONS] for step in row["rounds"]],
        )
        for row in read_rows(run / name)
    }


def test_a_replay_under_a_deployment_decides_the_same_at_another_time(
    trace: Path, tmp_path: Path
) -> None:
    first_run = replayed(trace, tmp_path / "here", "--batch-size", 4)
    second_run = replayed(trace, tmp_path / "there", "--batch-size", 4, "--deployment", "specedge")
    for method in METHODS:
        assert decisions(first_run[method]) == decisions(second_run[method])
        times = [
            read_object(runs[method] / "summary.json")["overall"]["makespan_s"]
            for runs in (first_run, second_run)
        ]
        assert times[0] != times[1]


def test_a_live_run_under_a_deployment_decides_as_a_measured_one(
    tiny: TinyPair, tmp_path: Path
) -> None:
    prompts = write_rows(
        tmp_path / "p.jsonl", *({"id": f"q{i}", "prompt": "Why?" * (1 + i)} for i in range(3))
    )
    options = ["--dataset", prompts, "--max-new-tokens", 24, *tiny.options, "--method", "fixed-k"]
    runs = {}
    for name in ("local", "raspberry-pi"):
        done = skit_here(
            "bench", *options, "--batch-size", 2, "--deployment", name, "--out", tmp_path / name
        )
        assert done.returncode == 0, done.stderr
        (runs[name],) = (tmp_path / name).iterdir()
    for file in ("requests.jsonl", "baseline.jsonl"):
        assert decisions(runs["local"], file) == decisions(runs["raspberry-pi"], file)
    local, modelled = (read_object(run / "run.json") for run in runs.values())
    assert (local["time_kind"], "deployment" in local) == ("measured", False)
    assert (modelled["time_kind"], modelled["deployment"]["name"]) == ("modelled", "raspberry-pi")
    assert {row["time_kind"] for row in read_rows(runs["raspberry-pi"] / "requests.jsonl")} == {
        "modelled"
    }
    assert read_object(runs["raspberry-pi"] / "summary.json")["lossless"]["lossless"] is True


@pytest.mark.nightly  # two processes; test_rerun.py repeats a modelled run
def test_summaries_are_the_same_bytes_in_every_process(trace: Path, tmp_path: Path) -> None:
    options = [
        "--method",
        "threshold:max_draft=6",
        "--deployment",
        "wan",
        "--seed",
        5,
        "--batch-size",
        3,
    ]
    runs = []
    for name, variables in {
        "usual": environment(),
        "other": environment(PYTHONHASHSEED="2", OMP_NUM_THREADS="2"),
    }.items():
        done = skit("bench", "--replay", trace, *options, "--out", tmp_path / name, env=variables)
        assert done.returncode == 0, done.stderr
        runs += list((tmp_path / name).iterdir())
    for name in ("summary.json", "requests.jsonl", "baseline.jsonl"):
        assert (runs[0] / name).read_bytes() == (runs[1] / name).read_bytes()


def test_run_json_has_every_number_that_time_depends_on(trace: Path, tmp_path: Path) -> None:
    changes = ["--set", "link.rtt_s=0.03", "--set", "link.jitter_s=0.002"]
    (run,) = replayed(
        trace, tmp_path, "--deployment", "specedge", *changes, methods=["fixed-k"]
    ).values()
    deployment = read_object(run / "run.json")["deployment"]
    assert (deployment["name"], deployment["placement"], deployment["predictor_s"]) == (
        "specedge",
        "edge",
        None,
    )
    assert deployment["link"] == {
        "rtt_s": 0.03,
        "jitter_s": 0.002,
        "up_bytes_per_s": None,
        "down_bytes_per_s": None,
        "seed": 0,
        "state_bytes": 10240.0,
        "draft_bytes": 0.0,
        "loss": 0.0,
        "retry_s": 0.0,
    }
    zeros = {"form": "interactions", "a_s": 0.0, "b_compute_s": 0.0, "b_read_s": 0.0}
    assert deployment["drafter"]["latency"] == {**zeros, "c_s": 0.011}
    assert deployment["verifier"]["latency"] == {**zeros, "c_s": 0.0942}
    assert "SpecEdge" in deployment["source"]


def test_the_report_says_under_which_deployment_time_is_modelled(
    trace: Path, tmp_path: Path
) -> None:
    (run,) = replayed(trace, tmp_path, "--deployment", "specedge", methods=["fixed-k"]).values()
    report = (run / "report.md").read_text()
    assert (
        "MODELLED TIME: durations come from the latency models of the deployment 'specedge'"
        in report
    )
    assert "requests in modelled time (specedge)." in report
    table = report.split("## Deployment (modelled)")[1].split("\n## ")[0]
    assert "NVIDIA GeForce RTX 4090 at $0.35 per hour, on the edge" in table
    assert "94.2 ms per forward (profile specedge-verify, published" in table
    assert "14.1 ms round trip, unlimited up, unlimited down" in table
    assert "Only time is modelled" in table


def test_a_replay_without_a_deployment_takes_the_recording_machines_time(
    trace: Path, tmp_path: Path
) -> None:
    (run,) = replayed(trace, tmp_path, methods=["fixed-k"]).values()
    assert read_object(run / "run.json")["deployment"]["name"] == "recorded"
    assert "10.0 ms for 1 new token to 13.0 ms for 7" in (run / "report.md").read_text()


def test_tokens_per_dollar(trace: Path, tmp_path: Path) -> None:
    """The server is paid for all along, the edge while it works; nothing is said where nothing has a price."""
    (run,) = replayed(
        trace, tmp_path / "a", "--deployment", "specedge", methods=["fixed-k"]
    ).values()
    summary = read_object(run / "summary.json")
    overall, plain = summary["overall"], summary["baseline"]["overall"]
    phases = overall["phase_seconds"]
    dollars = (5.05 * overall["makespan_s"] + 0.35 * (phases["prefill"] + phases["draft"])) / 3600
    assert overall["cost_efficiency"] == pytest.approx(overall["tokens"] / dollars)
    assert plain["cost_efficiency"] == pytest.approx(plain["throughput"] * 3600 / 5.05)
    (free,) = replayed(trace, tmp_path / "b", "--deployment", "wan", methods=["fixed-k"]).values()
    assert read_object(free / "summary.json")["overall"]["cost_efficiency"] is None


def test_resume_goes_on_only_under_the_same_deployment(tiny: TinyPair, tmp_path: Path) -> None:
    prompts = write_rows(
        tmp_path / "p.jsonl", {"id": "a", "prompt": "Hm?"}, {"id": "b", "prompt": "And?"}
    )
    command = [
        "bench",
        "--dataset",
        prompts,
        "--max-new-tokens",
        8,
        *tiny.options,
        "--method",
        "fixed-k",
    ]
    command += ["--out", tmp_path / "results", "--deployment", "specedge"]
    assert skit_here(*command).returncode == 0
    (run,) = (tmp_path / "results").iterdir()
    complete = (run / "requests.jsonl").read_text()
    (run / "requests.jsonl").write_text(complete.splitlines(keepends=True)[0])
    (run / "summary.json").unlink()
    refused = skit_here(*command, "--resume", "--set", "link.rtt_s=0.5")
    assert "holds no unfinished run with these settings" in refused.stderr
    assert skit_here(*command, "--resume").returncode == 0
    assert (run / "requests.jsonl").read_text() == complete


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--deployment", "wips"], "error: unknown deployment 'wips' (did you mean 'wisp'?)"),
        (["--set", "link.rtt_s=1"], "error: --set replaces fields of a modelled deployment"),
        (
            ["--deployment", "wisp", "--set", "link.rtt_s=-1"],
            "error: the deployment wisp with link.rtt_s=-1, [link]",
        ),
    ],
)
def test_bad_deployments_are_refused_before_anything_is_loaded(
    options: list[str], line: str, tmp_path: Path
) -> None:
    done: subprocess.CompletedProcess[str] = skit(
        "bench", "--method", "fixed-k", *options, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
