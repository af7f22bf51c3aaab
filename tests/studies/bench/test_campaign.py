"""Several datasets and all methods in one command."""

import json
import subprocess
from pathlib import Path

import pytest
from command_line import TinyPair, error_line, read_object, read_rows, skit_here, write_rows

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.methods.base import methods

pytestmark = pytest.mark.slow

SMALL = ("--max-new-tokens", 10, "--repeats", 2)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("data")
    rows = {
        "sums": ("How many?", "And now?"),
        "tales": ("Once upon a time", "In a far country", "There was"),
    }
    return [
        write_rows(
            folder / f"{name}.jsonl",
            *({"id": str(n), "prompt": text} for n, text in enumerate(texts)),
        )
        for name, texts in rows.items()
    ]


def command(files: list[Path], tiny: TinyPair, *options: object) -> list[object]:
    datasets = [part for file in files for part in ("--dataset", file)]
    return ["bench", *datasets, *tiny.options, *options]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def done(files: list[Path], tiny: TinyPair, folder: Path) -> subprocess.CompletedProcess[str]:
    """All methods, where nothing was ever profiled; in this process, which renders no figures."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SKIT_HOME", str(folder / "home"))
        patched.chdir(folder)
        return skit_here(*command(files[:1], tiny, "--method", "all", *SMALL, "--json"))


@pytest.fixture(scope="module")
def document(done: subprocess.CompletedProcess[str]) -> JsonObject:
    assert done.returncode == 0, done.stderr
    document: JsonObject = json.loads(done.stdout.splitlines()[-1])
    return document


def test_every_method_that_can_run_has_a_run_directory(document: JsonObject, folder: Path) -> None:
    expected = set(methods.all()) - {"autoregressive"} - set(document["left_out"])
    assert {
        "adaspec",
        "fixed-k",
        "oracle",
        "specedge",
        "specinfer",
        "specpipe",
        "threshold",
    } <= expected
    assert set(document["summary"]) == expected
    runs = [folder / path for path in document["run_dirs"]]
    assert len(runs) == len(expected)
    for run in runs:
        described, summary = read_object(run / "run.json"), read_object(run / "summary.json")
        assert (
            len(read_rows(run / "requests.jsonl"))
            == described["requests"]
            == described["dataset"]["count"] * 2
        )
        assert summary["lossless"]["errors"] == 0
        assert (run / "report.md").is_file()


def test_one_more_folder_holds_the_report_on_all_of_them(
    document: JsonObject, folder: Path
) -> None:
    joint = folder / document["report_dir"]
    assert joint.parent == folder / "results"
    assert str(joint) not in document["run_dirs"]
    assert {"report.md", "report.html", "report.csv"} <= {path.name for path in joint.iterdir()}
    text = (joint / "report.md").read_text()
    assert all(name in text for name in (*document["summary"], "sums"))
    assert len(list((folder / "results").iterdir())) == len(document["run_dirs"]) + 1


def test_several_datasets_have_a_run_directory_per_method_each_and_one_report(
    files: list[Path], tiny: TinyPair, tmp_path: Path
) -> None:
    arguments = command(
        files,
        tiny,
        "--method",
        "fixed-k",
        "--method",
        "oracle",
        *SMALL,
        "--out",
        tmp_path,
        "--json",
    )
    document = json.loads(skit_here(*arguments).stdout.splitlines()[-1])
    assert {name: set(methods) for name, methods in document["summary"].items()} == {
        "sums": {"fixed-k", "oracle"}, "tales": {"fixed-k", "oracle"},
    }  # fmt: skip
    runs = [Path(path).name for path in document["run_dirs"]]
    assert sorted(name.rpartition("-")[0].partition("-")[2] for name in runs) == [
        "fixed-k-sums", "fixed-k-tales", "oracle-sums", "oracle-tales",
    ]  # fmt: skip
    text = (Path(document["report_dir"]) / "report.md").read_text()
    assert all(name in text for name in ("fixed-k", "oracle", "sums", "tales"))


def test_what_cannot_run_is_named_in_one_line_and_its_reason_in_the_report(
    done: subprocess.CompletedProcess[str], document: JsonObject, folder: Path
) -> None:
    assert document["left_out"]["wisp"].startswith("no predictor for this pair of models")
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("left out: "))
    assert line.endswith(" more; the report says why")
    text = (folder / document["report_dir"] / "report.md").read_text()
    (row,) = (
        row for row in text.splitlines() if row.startswith("| left out: ") and "`wisp`" in row
    )
    assert "no predictor for this pair of models" in row


def test_latencies_that_a_method_wants_are_measured_and_kept(
    done: subprocess.CompletedProcess[str], folder: Path
) -> None:
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("no latency profile"))
    assert "a short one was measured in" in line
    profiles = sorted((folder / "home/profiles").glob("*.toml"))
    assert len(profiles) == 2
    assert all("short: one run of " in profile.read_text() for profile in profiles)
    (run,) = (folder / "results").glob("*-adaspec-sums-*")
    assert set(read_object(run / "run.json")["uses"]["latencies"]) == {"draft", "verify"}


def test_a_named_method_that_cannot_run_leaves_nothing(
    files: list[Path], tiny: TinyPair, tmp_path: Path
) -> None:
    done = skit_here(
        *command(files, tiny, "--method", "all", "--method", "wisp", "--deployment", "wan"),
        "--out",
        tmp_path,
    )
    assert error_line(done).startswith("wisp: no predictor for this pair of models")
    assert list(tmp_path.iterdir()) == []


def test_a_pipeline_that_the_deployment_lacks_is_left_out(
    files: list[Path], tiny: TinyPair, tmp_path: Path
) -> None:
    options = ("--deployment", "wan", "--max-new-tokens", 6, "--out", tmp_path, "--json")
    done = skit_here(*command(files[:1], tiny, "--method", "all", *options))
    assert done.returncode == 0, done.stderr
    left_out = json.loads(done.stdout.splitlines()[-1])["left_out"]
    assert {"specpipe", "wisp"} <= set(left_out)
    assert left_out["specpipe"].startswith(
        "the method has 8 stages, the verifier of deployment wan has 1"
    )


def test_a_named_pipeline_that_the_deployment_lacks_is_named(
    files: list[Path], tiny: TinyPair, tmp_path: Path
) -> None:
    methods = (
        "--method",
        "fixed-k",
        "--method",
        "specpipe",
        "--deployment",
        "wan",
        "--out",
        tmp_path,
    )
    done = skit_here(*command(files[:1], tiny, *methods))
    assert error_line(done).startswith(
        "specpipe: the method has 8 stages, the verifier of deployment wan has 1"
    )


def test_an_interrupted_command_is_resumed_over_all_its_datasets(
    files: list[Path], tiny: TinyPair, tmp_path: Path
) -> None:
    arguments = command(
        files, tiny, "--method", "fixed-k", "--method", "threshold", *SMALL, "--out", tmp_path
    )
    assert skit_here(*arguments).returncode == 0
    runs = sorted(file.parent for file in tmp_path.glob("*/run.json"))
    before = {run: read_rows(run / "requests.jsonl") for run in runs}
    assert len(runs) == 4
    for run in [run for run in runs if "tales" in run.name]:
        (run / "summary.json").unlink()
        write_rows(run / "requests.jsonl", *before[run][:1])
    assert skit_here(*arguments, "--resume").returncode == 0
    for run, earlier in before.items():
        rows = read_rows(run / "requests.jsonl")
        assert [(row["request_id"], row["repeat"], row["output_ids"]) for row in rows] == [
            (row["request_id"], row["repeat"], row["output_ids"]) for row in earlier
        ]


def test_a_dataset_given_twice_is_an_error(
    files: list[Path], tiny: TinyPair, tmp_path: Path
) -> None:
    done = skit_here(*command([files[0], files[0]], tiny, "--method", "fixed-k", "--out", tmp_path))
    assert error_line(done) == "a dataset is given twice: name each --dataset once"
