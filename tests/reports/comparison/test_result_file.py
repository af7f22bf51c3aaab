"""The file of a result: every page comes out of it again, byte for byte, without requests."""

import json
import lzma
from pathlib import Path

import pytest
from command_line import error_line, skit_here
from run_builders import in_turn, plain, records_of, write_methods, write_run

from specbench_kit import api
from specbench_kit.core import files
from specbench_kit.core.errors import SkitError
from specbench_kit.metrics import result_file
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.result import Comparison
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.reports.comparison.files import write_reports


def require_same_files(made: Path, again: Path) -> None:
    """Assert that two folders hold the same files with the same content."""
    names = {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    assert {path.relative_to(again) for path in again.rglob("*") if path.is_file()} == names
    for name in names:
        assert (made / name).read_bytes() == (again / name).read_bytes(), name


def test_every_page_of_a_comparison_comes_out_again(comparison: Comparison, tmp_path: Path) -> None:
    write_reports(comparison, tmp_path / "made")
    kept = result_file.find(tmp_path / "made")
    assert kept is not None
    write_reports(result_file.read(kept), tmp_path / "again")
    require_same_files(tmp_path / "made", tmp_path / "again")


def test_every_page_of_one_run_comes_out_again_with_its_example_and_failures(
    tmp_path: Path,
) -> None:
    records = in_turn(records_of(4, 0.7, 8, 24))
    records[0].text = "two lines,\n  the second indented"
    records[3].finish_reason, records[3].error = "error", "the device was full"
    run = write_run(tmp_path, "wisp", records, in_turn(plain(records)))
    comparison = compare(load_runs([run])[0], decode=lambda ids: f"a prompt of {len(ids)}\ntokens")
    write_reports(comparison, tmp_path / "made")
    page = (tmp_path / "made" / "report.md").read_text()
    assert all(
        text in page
        for text in ("a prompt of 2\ntokens", "  the second indented", "the device was full")
    )
    write_reports(result_file.read(tmp_path / "made" / "result.json"), tmp_path / "again")
    require_same_files(tmp_path / "made", tmp_path / "again")


def test_the_file_holds_no_request_and_no_folder_of_this_machine(tmp_path: Path) -> None:
    write_methods(tmp_path / "runs")
    comparison = compare(load_runs([tmp_path / "runs"])[0])
    text = result_file.to_json(comparison)
    assert str(tmp_path) not in text
    assert '"output_ids"' not in text
    assert len(comparison.folders) == len(comparison.runs)
    (tmp_path / "result.json").write_text(text)
    assert result_file.read(tmp_path / "result.json").folders == []


@pytest.mark.parametrize("compressed", [False, True])
def test_a_folder_with_nothing_but_a_result_is_reported_and_loaded(
    comparison: Comparison, compressed: bool, tmp_path: Path
) -> None:
    write_reports(comparison, tmp_path / "made")
    folder = tmp_path / "kept"
    folder.mkdir()
    content = (tmp_path / "made" / "result.json").read_bytes()
    name = "result.json.xz" if compressed else "result.json"
    (folder / name).write_bytes(lzma.compress(content) if compressed else content)
    done = skit_here("report", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"report: {folder / 'report.tex'}"
    (folder / name).unlink()
    (folder / "result.json").write_bytes(content)
    require_same_files(tmp_path / "made", folder)
    result = api.load(folder)
    assert f"{comparison.reference}: " in result.headline
    assert set(result.to_pandas()["method"]) == set(comparison.overall)
    with pytest.raises(
        SkitError, match="kept without its requests: load the runs that it was made of"
    ):
        result.compare(against="wisp")


def test_what_needs_requests_is_refused_in_one_line(comparison: Comparison, tmp_path: Path) -> None:
    write_reports(comparison, tmp_path, ["json"])
    for arguments, words in (
        (
            ["report", tmp_path, "--against", "wisp"],
            "--against and --force need the runs that it was made of",
        ),
        (
            ["compare", tmp_path, tmp_path],
            "name the runs that it was made of to put them beside others",
        ),
    ):
        assert words in error_line(skit_here(*arguments))


def _with(text: str, **changes: object) -> str:
    document = json.loads(text)
    return json.dumps({**document, "result": {**document["result"], **changes}})


def _without_runs(text: str) -> dict[str, object]:
    first, *others = json.loads(text)["result"]["series"]
    return {"series": [{**first, "runs": {}}, *others]}


def _without_a_row(text: str) -> dict[str, object]:
    first, *others = json.loads(text)["result"]["parts"]
    return {"parts": [{**first, "rows": dict(list(first["rows"].items())[1:])}, *others]}


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        (
            "result.json",
            lambda text: text.replace('"version":1', '"version":2', 1),
            "a newer specbench-kit (version 2",
        ),
        ("result.json", lambda text: text[:-30], "it is not a result of skit bench"),
        (
            "result.json",
            lambda text: _with(text, reference=3),
            "result.reference must be text, not 3",
        ),
        ("result.json", lambda _: "[]", "it is not a result of skit bench"),
        ("result.json", lambda text: _with(text, parts=[]), "it has no table or no series"),
        ("result.json", lambda text: _with(text, series=[]), "it has no table or no series"),
        ("result.json", lambda text: _with(text, curves={}), "a series has no curves"),
        (
            "result.json",
            lambda text: _with(text, reference="nobody"),
            "its reference 'nobody' is no series",
        ),
        ("result.json", lambda text: _with(text, **_without_runs(text)), "a series has no run"),
        (
            "result.json",
            lambda text: _with(text, **_without_a_row(text)),
            "the first table lacks a series",
        ),
        ("result.json.xz", lambda text: text, "cannot read"),
    ],
)
def test_a_damaged_or_newer_file_is_refused(
    comparison: Comparison, name: str, damage, reason, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(damage(result_file.to_json(comparison)))
    assert reason in error_line(skit_here("report", tmp_path))


def test_texts_of_a_foreign_file_control_no_terminal(
    comparison: Comparison, tmp_path: Path
) -> None:
    text = result_file.to_json(comparison)
    assert "gsm8k" in text
    (tmp_path / "result.json").write_text(text.replace("gsm8k", "\\u001b[31mred"))
    (name,) = result_file.read(tmp_path / "result.json").datasets
    assert name == "\\x1b[31mred"


def test_a_small_file_that_unpacks_to_more_than_a_result_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LARGEST_BYTES", 10_000)
    (tmp_path / "result.json.xz").write_bytes(lzma.compress(b" " * 1_000_000))
    assert "it is cut short, or larger than 10,000 bytes" in error_line(
        skit_here("report", tmp_path)
    )
