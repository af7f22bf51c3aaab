"""`skit train-predictor` from the command line."""

import json
import re
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from command_line import (
    BUSY,
    QUIET,
    READINGS,
    TinyPair,
    environment,
    error_line,
    read_object,
    skit,
    skit_here,
)
from msgspec import to_builtins
from study_pages import assert_made_again
from trace_builders import made_requests, write_trace

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.methods.predictor_based import load_predictor
from specbench_kit.predictors.artefact import load
from specbench_kit.predictors.library import PairHashes, entries, find
from specbench_kit.predictors.thresholds import THRESHOLD_RULES
from specbench_kit.traces.replay import identify_pair

pytestmark = pytest.mark.slow

PROMPTS, NEW_TOKENS = 12, 16
QUICK = ["--trials", "1", "--repeats", "1"]
FAST = ["--families", "logistic,xgboost", "--trials", "2", "--repeats", "1"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def done(tiny: TinyPair, home: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """A real run on bundled sample prompts: recording, training, report, artefacts."""
    return skit(
        "train-predictor",
        *tiny.options,
        *FAST,
        *(
            "--limit",
            PROMPTS,
            "--max-new-tokens",
            NEW_TOKENS,
            "--max-draft",
            4,
            "--out",
            out,
            "--json",
        ),
        env=environment(SKIT_HOME=str(home)),
    )


@pytest.fixture(scope="module")
def document(done: subprocess.CompletedProcess[str]) -> JsonObject:
    assert done.returncode == 0, done.stderr
    parsed: JsonObject = json.loads(done.stdout.splitlines()[-1])
    return parsed


@pytest.fixture(scope="module")
def folder(document: JsonObject) -> Path:
    return Path(document["run_dirs"][0])


@pytest.fixture(scope="module")
def pair(tiny: TinyPair) -> PairHashes:
    return identify_pair(str(tiny.target), str(tiny.draft))


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_stdout_is_one_document_and_stderr_tells_progress_and_the_stand_in(
    done: subprocess.CompletedProcess[str], document: JsonObject, folder: Path
) -> None:
    assert done.stdout.count("\n") == 1
    assert document["summary"] == read_object(folder / "summary.json")
    for step in (
        "recording",
        "training logistic",
        "training xgboost",
        "SAMPLE DATA",
        "saved: xgboost",
    ):
        assert step in done.stderr
    assert f"report: {folder / 'report.html'} (as text: report.md)" in done.stderr


def test_the_run_folder_holds_trace_report_plots_and_predictors(
    folder: Path, out: Path, tmp_path: Path
) -> None:
    assert folder.parent == out
    assert re.fullmatch(r"\d{8}T\d{6}Z-train-predictor-gsm8k-[0-9a-f]{8}", folder.name)
    names = {path.name for path in folder.iterdir()}
    files = {
        "trace.parquet",
        "decoding.csv",
        "report.md",
        "report.html",
        "run.json",
        "summary.json",
    }
    assert names == {*files, "plots", "predictors"}
    assert_made_again(folder, tmp_path)
    assert {path.name for path in (folder / "predictors").iterdir()} == {"logistic", "xgboost"}
    run = read_object(folder / "run.json")
    assert run["dataset"]["source"] == "sample"
    assert not [text for text in run["argv"] if text.startswith("/")]


def test_saved_predictors_are_found_by_pair_and_one_is_recommended(
    document: JsonObject, home: Path, pair: PairHashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIT_HOME", str(home))
    predictors = [load(folder, pair=pair) for folder in find(pair)]
    assert [predictor.recommended for predictor in predictors] == [True, False]
    assert predictors[0].family == document["summary"]["recommended"]
    longest = {
        contender["name"]: contender["longest"] for contender in document["summary"]["contenders"]
    }
    for predictor in predictors:
        assert predictor.max_draft == longest[predictor.family]
        assert (
            predictor.metrics["classification"]["auc"]
            == document["summary"]["classification"][predictor.family]["auc"]
        )
        assert predictor.training["split"]["test"]["prompts"] == 2


def test_wisp_decodes_with_what_was_trained(
    tiny: TinyPair, home: Path, document: JsonObject, tmp_path: Path
) -> None:
    longest = next(
        contender["longest"]
        for contender in document["summary"]["contenders"]
        if contender["kind"] == "classifier"
    )
    bench = skit(
        *("bench", "--method", f"wisp:max_draft={longest}", *tiny.options),
        *("--limit", 2, "--max-new-tokens", 8, "--out", tmp_path, "--json"),
        env=environment(SKIT_HOME=str(home)),
    )
    assert bench.returncode == 0, bench.stderr
    (summary,) = json.loads(bench.stdout)["summary"].values()
    assert summary["lossless"]["identical"] == 2


def test_a_trace_stands_in_for_recording_and_save_to_takes_the_recommended(
    tiny: TinyPair, folder: Path, own_home: Path, tmp_path: Path, pair: PairHashes
) -> None:
    chosen = tmp_path / "chosen"
    options = [
        "--trace",
        folder / "trace.parquet",
        "--save-to",
        chosen,
        "--out",
        tmp_path / "out",
        "--json",
    ]
    again = skit_here(
        "train-predictor", *tiny.options, *FAST, *options, "--operating-point", "fpr=0.2"
    )
    assert again.returncode == 0, again.stderr
    summary = json.loads(again.stdout)["summary"]
    predictor = load(chosen, pair=pair)
    assert (predictor.recommended, predictor.family) == (True, summary["recommended"])
    assert (predictor.operating_rule, summary["max_draft"]) == ("fpr=0.2", 4)
    assert not own_home.exists()


def test_a_name_and_features_are_kept(
    tiny: TinyPair, folder: Path, own_home: Path, tmp_path: Path
) -> None:
    options = [
        "--trace",
        folder / "trace.parquet",
        "--out",
        tmp_path,
        "--families",
        "logistic",
        "--trials",
        "1",
        "--repeats",
        "1",
    ]
    done = skit_here(
        "train-predictor",
        *tiny.options,
        *options,
        "--name",
        "mine",
        "--features",
        "draft_position,margin",
    )
    assert done.returncode == 0, done.stderr
    predictor = load(own_home / "predictors/mine-logistic")
    assert predictor.features == ("margin", "draft_position")


def test_predictors_by_the_times_of_a_disturbed_machine_are_marked_and_used_only_where_they_are_named(
    tiny: TinyPair, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(READINGS, str(BUSY))
    trace = tmp_path / "trace.parquet"
    recorded = skit_here(
        "record", *tiny.options, "--limit", PROMPTS, "--max-new-tokens", 8, "--out", trace
    )
    assert recorded.returncode == 0, recorded.stderr
    assert "DISTURBED MACHINE: the trace had a processor for 4%" in " ".join(
        recorded.stdout.split()
    )
    monkeypatch.setenv(
        READINGS, str(QUIET)
    )  # a quiet training does not make the trace's times better
    options = ["--trace", trace, "--families", "logistic", "--trials", 1, "--repeats", 2]
    command = ["train-predictor", *tiny.options, *options, "--out", tmp_path / "out"]
    done = skit_here(*command)
    assert done.returncode == 0, done.stderr
    (saved,) = (own_home / "predictors").iterdir()
    assert saved.name.endswith("-disturbed")
    assert f"used only where it is named (predictor={saved.name})" in " ".join(done.stdout.split())
    pair = load(saved).pair
    assert (find(pair), find(pair, "logistic"), find(pair, saved.name)) == ([], [], [saved])
    entry = next(row for row in to_builtins(entries()) if row["name"] == saved.name)
    assert str(entry["summary"]).startswith("DISTURBED MACHINE: the trace had a processor")
    with pytest.raises(SkitError, match=f"known: {saved.name}"):
        load_predictor("wisp", "auto", pair, force=False)
    command += ["--save-to", tmp_path / "mine"]
    (folder,) = (tmp_path / "out").iterdir()
    assert load(folder / "predictors" / "logistic").recommended
    assert "DISTURBED MACHINE" in (folder / "report.md").read_text().split("\n\n")[1]
    assert read_object(folder / "summary.json")["recommended"] == "logistic"
    forced = skit_here(*command, "--force")
    assert forced.returncode == 0, forced.stderr
    assert load(tmp_path / "mine").family == "logistic"
    deployed = skit_here(
        *command, "--save-to", tmp_path / "wan", "--deployment", "wan", "--deployment", "specedge"
    )
    assert deployed.returncode == 0, deployed.stderr
    saved = load(tmp_path / "wan")
    assert {(point.deployment, point.rule) for point in saved.tuned} == {
        *product(("wan", "specedge"), THRESHOLD_RULES)
    }
    assert saved.decision_origin.startswith("measured in the decoding loop on ")
    assert 0 < saved.decision_s < 0.1


BAD = {
    "--families oracle": "unknown predictor family 'oracle'",
    "--features colour": "unknown feature 'colour'; known: confidence",
    "--trials 0": "at least one trial",
    "--operating-point best": "use throughput, balanced, or fpr=RATE",
    "--repeats 0": "--repeats must be at least 1",
    "--max-draft 0": "--max-draft must be at least 1",
    "--limit 0": "--limit must be at least 1",
    "--name a/b": "cannot be a folder's name",
    "--trace nowhere.parquet": "cannot read the trace nowhere.parquet",
    "--limit 3 --max-new-tokens 2": "prompts, which cannot be split: record at least 5",
}


@pytest.mark.parametrize("options", BAD)
def test_bad_input_is_one_line(
    options: str, tiny: TinyPair, own_home: Path, tmp_path: Path
) -> None:
    done = skit_here("train-predictor", *tiny.options, "--out", tmp_path / "out", *options.split())
    assert BAD[options] in error_line(done)
    assert not own_home.exists()


def test_bad_traces_are_one_line_and_leave_no_folder(
    tiny: TinyPair, folder: Path, pair: PairHashes, tmp_path: Path
) -> None:
    models = {role: {"name": role, "hash": getattr(pair, role)} for role in ("target", "draft")}
    content = (folder / "trace.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.parquet").write_text("no trace")
    write_trace(tmp_path / "empty.parquet", [], models)
    write_trace(tmp_path / "foreign.parquet", made_requests(6))
    write_trace(tmp_path / "few.parquet", made_requests(4), models)
    problems = {
        "cut": "cannot read the trace",
        "text": "cannot read the trace",
        "empty": "is empty: record prompts",
        "foreign": "recorded with other models (big and small)",
        "few": "holds 4 prompts, which cannot be split",
    }
    for name, problem in problems.items():
        options = ["--trace", tmp_path / f"{name}.parquet", "--out", tmp_path / "out"]
        assert problem in error_line(skit_here("train-predictor", *tiny.options, *options))
    longer = ["--trace", folder / "trace.parquet", "--out", tmp_path / "out", "--max-draft", 9]
    assert "holds drafts of 4 tokens" in error_line(
        skit_here("train-predictor", *tiny.options, *longer)
    )
    assert not (tmp_path / "out").exists()
