"""The folder of any command is read back, and its page made again from it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import error_line, read_object, skit_here
from study_pages import assert_made_again, assert_marks_are_rendered, nested_bold
from trace_builders import MODELS, made_requests, write_trace

from specbench_kit import api
from specbench_kit.core.errors import SkitError
from specbench_kit.reports.writing.drawing import NAMESPACE
from specbench_kit.studies.kinds import kinds, studies_in

OLD = Path(__file__).parents[1] / "folders_of_0_2"
STUDIES_OF_0_2 = sorted(path for path in OLD.iterdir() if path.name != "bench")
STATED = ("--acceptance", "iid:alpha=0.8,length=3", "--prompt-tokens", 60, "--output-tokens", 20)
SHORT = ("--duration", 8, "--warm-up", 2, "--seeds", 1, "--jobs", 1)
COMMANDS = {
    "bench": ("--method", "fixed-k:k=2", "--deployment", "wan"),
    "sweep": ("--method", "fixed-k:k=2", "--deployment", "wan", "--set", "link.rtt_s=0.01,0.1"),
    "batch-sizes": ("--method", "fixed-k:k=2", "--deployment", "wan", "--sizes", "1,2"),
    "simulate": ("--system", "wisp", "--devices", "2,4", *STATED, *SHORT),
    "capacity": ("--system", "wisp", "--most", 16, *STATED, *SHORT),
    "profile-verifier": ("--gpu", "a100"),
}
ON_A_TRACE = ("bench", "sweep", "batch-sizes")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder that each command has just written."""
    base = tmp_path_factory.mktemp("studies")
    trace = write_trace(base / "trace.parquet", made_requests(4), MODELS).path
    folders = {}
    for command, options in COMMANDS.items():
        replayed = ("--replay", trace) if command in ON_A_TRACE else ()
        done = skit_here(command, *options, *replayed, "--out", base / command, "--json")
        assert done.returncode == 0, done.stderr
        (folders[command],) = map(Path, json.loads(done.stdout.splitlines()[-1])["run_dirs"])
    return folders


@pytest.mark.figures
@pytest.mark.parametrize("command", COMMANDS)
def test_every_page_is_made_again_from_two_files(
    command: str, made: dict[str, Path], tmp_path: Path
) -> None:
    assert_made_again(made[command], tmp_path)


def test_every_kind_is_found_by_its_command(made: dict[str, Path]) -> None:
    for command, folder in made.items():
        (study,) = studies_in(folder)
        assert study.kind is kinds()[command]
        assert read_object(folder / "run.json")["schema_version"] == 1
        assert len(api.load(folder).to_pandas()) > 0


def test_three_folders_of_different_commands_join_in_a_notebook(
    made: dict[str, Path], tmp_path: Path
) -> None:
    trace = write_trace(tmp_path / "trace.parquet", made_requests(4), MODELS).path
    assert (
        skit_here(
            "bench", "--method", "fixed-k:k=2", "--replay", trace, "--out", tmp_path / "runs"
        ).returncode
        == 0
    )
    folders = [made["sweep"], made["batch-sizes"], tmp_path / "runs"]
    swept, sized, benchmark = (api.load(folder).to_pandas() for folder in folders)
    alone = sized[sized.batch_size == 1][["method", "tpot_s"]]
    lengths = benchmark[["spec", "acceptance_length"]].rename(columns={"spec": "method"})
    joined = swept.merge(alone, on="method").merge(lengths, on="method", suffixes=("", "_there"))
    assert len(joined) == len(swept) == 4, "no method is lost"
    assert set(joined.method) == {"autoregressive", "fixed-k:k=2"}
    assert joined.acceptance_length.tolist() == pytest.approx(
        joined.acceptance_length_there.tolist()
    )
    results = [api.load(made[command]) for command in ("sweep", "simulate", "batch-sizes")]
    assert all(result.headline and result.warnings for result in results)
    with pytest.raises(SkitError, match=r"there is no table 'rows' in this result; it has sweep"):
        results[0].to_pandas("rows")


def test_a_folder_of_folders_stands_for_all_of_them(made: dict[str, Path], tmp_path: Path) -> None:
    for command in ("sweep", "simulate"):
        shutil.copytree(made[command], tmp_path / command)
    done = skit_here("report", tmp_path, "--format", "md,csv", "--json")
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout.splitlines()[-1])
    assert written["run_dirs"] == [str(tmp_path / "simulate"), str(tmp_path / "sweep")]
    assert written["summary"][1] == read_object(made["sweep"] / "summary.json")


def test_a_changed_sentence_is_on_the_page_without_running_anything(
    made: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(made["sweep"], tmp_path / "changed")
    run = read_object(folder / "run.json")
    run["dataset"]["name"] = "questions of mine"
    (folder / "run.json").write_text(json.dumps(run))
    assert skit_here("report", folder, "--out", tmp_path / "page").returncode == 0
    assert "on questions of mine" in (tmp_path / "page" / "report.md").read_text()
    assert (tmp_path / "page" / "plots" / "speedup.svg").is_file()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"schema_version": 2},
            "was written by a newer specbench-kit (version 2 of the format",
        ),
        ({"command": "sew"}, "holds a run of skit sew, whose page cannot be made again"),
        ({"requests": "many"}, "requests must be a whole number"),
        ({"deployment": 3}, "deployment must be an object"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    change: dict[str, object], words: str, made: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(made["sweep"], tmp_path / "study")
    (folder / "run.json").write_text(json.dumps(read_object(folder / "run.json") | change))
    assert words in error_line(skit_here("report", folder))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "has no summary.json: its run of skit sweep is unfinished"),
        ("{", "summary.json is not valid JSON ("),
        ("[]", "holds no JSON object"),
        (
            '{"axes": {}, "break_even": [], "edge": [], "fastest": [], "rows": [3]}',
            "rows[0] must be an object",
        ),
    ],
)
def test_a_damaged_result_is_one_line(
    content: str | None, words: str, made: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(made["sweep"], tmp_path / "study")
    (folder / "summary.json").unlink()
    if content is not None:
        (folder / "summary.json").write_text(content)
    assert words in error_line(skit_here("report", folder))


def test_files_that_do_not_belong_together_are_one_line(
    made: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(made["capacity"], tmp_path / "study")
    summary = read_object(folder / "summary.json") | {"rows": []}
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "no page can be made of what summary.json and run.json say together" in error_line(
        skit_here("report", folder)
    )
    assert skit_here("report", "--index", tmp_path).returncode == 0


def test_a_drawing_from_elsewhere_keeps_shapes_and_texts_alone(
    made: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(made["profile-verifier"], tmp_path / "study")
    (drawing,) = (folder / "plots").glob("*_shares.svg")
    drawing.write_text(
        f'<svg xmlns="{NAMESPACE}" viewBox="0 0 9 9"><script>alert(1)</script><path d="M0 0"/></svg>'
    )
    assert skit_here("report", folder, "--out", tmp_path / "page").returncode == 0
    for file in (tmp_path / "page" / "report.html", tmp_path / "page" / "plots" / drawing.name):
        assert "alert(1)" not in file.read_text()
        assert "<path" in file.read_text()


def test_no_model_library_is_loaded_to_read_a_folder(made: dict[str, Path]) -> None:
    code = (
        "import sys; from pathlib import Path; from specbench_kit.studies.kinds import studies_in; "
        f"print([study.headline for study in studies_in(Path({str(made['sweep'])!r}))], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("] False")


def test_a_file_in_place_of_a_folder_is_one_line(made: dict[str, Path]) -> None:
    line = error_line(skit_here("report", made["sweep"] / "report.html"))
    assert line.startswith(f"{made['sweep'] / 'report.html'} is a file: name the folder of a run")


def test_options_of_comparisons_are_refused_for_other_commands(
    made: dict[str, Path], tmp_path: Path
) -> None:
    assert "are for runs of skit bench" in error_line(skit_here("report", made["sweep"], "--bare"))
    assert "it has md, html, csv, png, svg" in error_line(
        skit_here("report", made["sweep"], "--format", "latex")
    )
    both = (made["sweep"], made["simulate"], "--out", tmp_path)
    assert "--out is one folder" in error_line(skit_here("report", *both))
    assert "they share no table" in error_line(skit_here("report", made["sweep"], OLD / "bench"))


@pytest.mark.figures
@pytest.mark.parametrize("folder", STUDIES_OF_0_2, ids=lambda path: path.name)
def test_folders_of_0_2_open(folder: Path, tmp_path: Path) -> None:
    done = skit_here("report", folder, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    (study,) = studies_in(folder)
    assert study.kind.command == folder.name
    assert study.headline.replace("`", "") in (tmp_path / "report.md").read_text().replace(
        "`", ""
    ).replace("**", "")
    assert_marks_are_rendered(tmp_path)
    assert len(api.load(folder).to_pandas()) > 0


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("**All of it** and **more**.", ""),
        ("*a caption*", ""),
        ("**End to end: **1.11x** as fast.**", "bold within bold"),
        ("**20 pairs. **6 of them differ.****", "marks that run together"),
        ("**never closed", "a mark without its other"),
    ],
)
def test_bold_within_bold_is_noticed(line: str, error: str) -> None:
    assert nested_bold(line) == error


def test_rows_of_an_old_sweep_are_those_of_its_table() -> None:
    old = read_object(OLD / "sweep" / "summary.json")["rows"]
    new = api.load(OLD / "sweep").to_pandas().to_dict("records")
    for before, now in zip(old, new, strict=True):
        for name in (
            "link.rtt_s",
            "fixed-k.k",
            "method",
            "speedup",
            "speedup_low",
            "tpot_p95_s",
            "draft_s",
        ):
            assert now[name] == before[name] or (before[name] is None and now[name] != now[name])


def test_a_benchmark_of_0_2_opens(tmp_path: Path) -> None:
    done = skit_here("report", OLD / "bench", "--out", tmp_path, "--format", "md,html")
    assert done.returncode == 0, done.stderr
    assert_marks_are_rendered(tmp_path)
    page = (tmp_path / "report.md").read_text()
    assert "fixed-k:k=3" in page
    (study,) = studies_in(OLD / "bench")
    assert study.kind is kinds()["bench"]
    assert f"**{study.headline}**" in page
    assert api.load(OLD / "bench").headline == study.headline
