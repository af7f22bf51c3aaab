"""A benchmark is a kind of study, whether its folder holds one run or the result of several."""

import json
import shutil
from pathlib import Path

import pytest
from command_line import error_line, read_object, skit_here
from run_builders import write_methods
from study_pages import assert_made_again
from trace_builders import MODELS, made_requests, write_trace

from specbench_kit import api
from specbench_kit.reports.document import plain
from specbench_kit.runs.line_file import LineFile
from specbench_kit.studies.bench.kind import BENCH
from specbench_kit.studies.kinds import studies_in, warnings
from specbench_kit.studies.reporting.index import write_index

METHODS = ("--method", "fixed-k:k=2", "--method", "threshold:max_draft=3", "--deployment", "wan")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What `skit bench --json` says of two methods and their joint report."""
    base = tmp_path_factory.mktemp("bench")
    trace = write_trace(base / "trace.parquet", made_requests(6), MODELS).path
    done = skit_here("bench", *METHODS, "--replay", trace, "--out", base / "runs", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def joint(written: dict[str, object], tmp_path: Path) -> Path:
    """The folder of the joint report, without the runs that it was made of."""
    return shutil.copytree(str(written["report_dir"]), tmp_path / "joint")


@pytest.mark.figures
def test_the_pages_of_several_runs_come_from_their_result(joint: Path, tmp_path: Path) -> None:
    assert_made_again(joint, tmp_path / "again")


def test_a_result_without_its_runs_is_a_study_like_any_other(
    written: dict[str, object], joint: Path
) -> None:
    (study,) = studies_in(joint)
    assert study.kind is BENCH
    assert study.folder == joint
    assert f"**{study.headline}**" in (joint / "report.md").read_text()
    runs = [Path(folder) for folder in written["run_dirs"]]
    again = BENCH.of(runs)
    assert again.headline == study.headline
    assert warnings(again) == warnings(study)
    assert BENCH.files(again) == BENCH.files(study)
    assert [run.method for run in study.runs] == [
        read_object(folder / "run.json")["method"] for folder in runs
    ]


def test_a_run_and_a_result_are_loaded_as_the_same_type(
    written: dict[str, object], joint: Path
) -> None:
    alone = api.load(written["run_dirs"][0])
    together = api.load(joint)
    for loaded, number in ((alone, 1), (together, 2)):
        assert isinstance(loaded, api.Result)
        assert len(loaded.result.runs) == number
        assert loaded.headline == plain(loaded.study.headline)
        assert any(line.startswith("MODELLED TIME") for line in loaded.warnings)
        assert len(loaded.tables["overall"]) == len(loaded.to_pandas()) == 1 + number


def test_page_index_and_notebook_say_one_sentence_of_a_run(written: dict[str, object]) -> None:
    for folder in map(Path, written["run_dirs"]):
        (study,) = studies_in(folder)
        entry = BENCH.entry(folder)
        assert entry.headline == study.headline
        assert entry.cautions == BENCH.cautions(study)
        assert f"**{study.headline}**" in (folder / "report.md").read_text()


def test_an_index_reads_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in write_methods(tmp_path):
        BENCH.read(folder).pages(folder, ["md"])
    monkeypatch.setattr(Path, "read_bytes", _refusing(Path.read_bytes))
    monkeypatch.setattr(LineFile, "records", None)
    write_index(tmp_path)
    assert "the speed of autoregressive decoding" in (tmp_path / "index.md").read_text()


def _refusing(read: object) -> object:
    def read_bytes(path: Path) -> bytes:
        assert path.suffix != ".jsonl", f"{path} was read"
        return read(path)

    return read_bytes


def test_a_result_stands_alone(joint: Path, written: dict[str, object]) -> None:
    line = error_line(skit_here("report", joint, written["run_dirs"][0]))
    assert "holds a result without its requests: name the runs that it was made of" in line
    assert "--against and --force need the runs" in error_line(
        skit_here("compare", joint, "--against", "threshold")
    )


def test_the_schema_of_a_benchmark_describes_both_files() -> None:
    done = skit_here("schema", "bench")
    assert done.returncode == 0, done.stderr
    schema = json.loads(done.stdout)
    properties = schema["$defs"]["FolderOfBench"]["properties"]
    assert [*properties] == ["run.json", "result.json"]
    assert "parts" in schema["$defs"]["Comparison"]["properties"]
