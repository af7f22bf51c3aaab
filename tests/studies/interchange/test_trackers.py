"""Runs for trackers and hubs, offline."""

import json
import sqlite3
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import error_line, skit_here
from run_builders import write_methods

from specbench_kit.serving.golden import golden_length


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_methods(tmp_path / "runs", requests=8, drafts={"wisp": (4, 0.8)})[0]


def export(run: Path, name: str, out: Path) -> None:
    done = skit_here("export", run, "--format", name, "--out", out)
    assert done.returncode == 0, done.stderr


def test_a_result_card_is_yaml_with_the_runs_own_numbers(run: Path, tmp_path: Path) -> None:
    export(run, "results-yaml", tmp_path / "results.yaml")
    lines = (tmp_path / "results.yaml").read_text().splitlines()
    overall = json.loads((run / "summary.json").read_text())["overall"]
    assert lines[0] == "model-index:"
    assert lines[lines.index("    - type: speedup") + 1] == f"      value: {overall['speedup']:.6g}"
    assert any("speculative decoding, wisp, measured time" in line for line in lines)


def test_golden_lengths_are_those_of_the_rounds_and_read_back(tmp_path: Path) -> None:
    fixed, varying = write_methods(
        tmp_path / "runs", requests=8, drafts={"fixed-k:k=4": (4, 0.8), "wisp": (3, 0.5)}
    )
    export(fixed, "golden", tmp_path / "golden.yaml")
    rounds = [
        step for line in (fixed / "requests.jsonl").open() for step in json.loads(line)["rounds"]
    ]
    drafts = [step for step in rounds if step["submitted"]]
    length = 1 + sum(step["accepted"] for step in drafts) / len(drafts)
    assert golden_length(str(tmp_path / "golden.yaml"), 4, thinking=False) == round(length, 2)
    text = (tmp_path / "golden.yaml").read_text()
    assert "95% interval over prompts: " in text
    assert "belong under thinking_on" in text
    records = [json.loads(line) for line in (varying / "requests.jsonl").open()]
    for number, step in enumerate(step for record in records for step in record["rounds"]):
        step["submitted"] = max(step["accepted"], 1 + number % 3)
    (varying / "requests.jsonl").write_text(
        "".join(f"{json.dumps(record)}\n" for record in records)
    )
    message = error_line(
        skit_here("export", varying, "--format", "golden", "--out", tmp_path / "x")
    )
    assert message.endswith("this run's drafts differ in length: export a run of fixed-k")


@pytest.mark.skipif(not find_spec("mlflow"), reason="the extra mlflow is not installed here")
def test_mlflow_keeps_a_run_in_a_database_of_the_folder(run: Path, tmp_path: Path) -> None:
    export(run, "mlflow", tmp_path / "tracked")
    rows = sqlite3.connect(tmp_path / "tracked" / "mlflow.db").execute(
        "select key, value from latest_metrics"
    )
    overall = json.loads((run / "summary.json").read_text())["overall"]
    assert dict(rows)["speedup"] == pytest.approx(overall["speedup"])
    assert list((tmp_path / "tracked" / "artifacts").rglob("summary.json"))


@pytest.mark.skipif(not find_spec("wandb"), reason="the extra wandb is not installed here")
def test_wandb_keeps_a_run_offline(run: Path, tmp_path: Path) -> None:
    export(run, "wandb", tmp_path / "tracked")
    assert list((tmp_path / "tracked").glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_package_that_is_not_here_is_named(name: str, run: Path, tmp_path: Path) -> None:
    if find_spec(name):
        pytest.skip(f"the extra {name} is installed here")
    message = error_line(skit_here("export", run, "--format", name, "--out", tmp_path / "x"))
    assert (
        message
        == f"exporting to {name} needs a package that is not installed: pip install 'specbench-kit[{name}]'"
    )
