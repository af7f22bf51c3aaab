"""Runs that are damaged, unfinished, foreign or too new: one line each, and the rest is read."""

import json
import shutil

import pytest
from run_builders import in_turn, plain, records_of, write_methods, write_run

from specbench_kit.core.errors import SkitError
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.metrics.run_summary import RequestCounts


@pytest.fixture
def run(tmp_path):
    records = in_turn(records_of(4, 0.7, 8, 24))
    return write_run(tmp_path, "wisp", records, in_turn(plain(records)))


def change(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def problems(path):
    (loaded,) = load_runs([path])[0]
    return loaded, list(loaded.problems)


def test_a_whole_run_has_no_problems(run):
    loaded, lines = problems(run)
    assert (len(loaded.records), len(loaded.baseline), lines) == (8, 8, [])
    assert loaded.method == "wisp"


def test_a_last_line_that_was_cut_short_is_named_and_left_out(run):
    file = run / "requests.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    loaded, lines = problems(run)
    assert len(loaded.records) == 7
    assert lines == [f"{run.name}/requests.jsonl:8: the last line was cut short: left out"]


def test_a_damaged_line_and_a_repeated_one_are_named_and_left_out(run):
    file = run / "requests.jsonl"
    rows = file.read_text().splitlines()
    file.write_text(
        "\n".join([rows[0], "{broken", *rows[1:], rows[3], '{"request_id": "x"}']) + "\n"
    )
    loaded, lines = problems(run)
    assert len(loaded.records) == 8
    assert lines[0].startswith(f"{run.name}/requests.jsonl:2: not a request record (")
    assert (
        lines[1]
        == f"{run.name}/requests.jsonl:10: request 'q3' is recorded twice: the second is left out"
    )
    assert lines[2].startswith(
        f"{run.name}/requests.jsonl:11: not a request record (category is missing)"
    )


def test_an_unfinished_run_is_reported_from_its_requests(run):
    (run / "summary.json").unlink()
    change(run / "run.json", requests=20)
    loaded, lines = problems(run)
    assert loaded.summary.partial is True
    assert loaded.summary.requests == RequestCounts(20, 8, 0)
    assert loaded.summary.overall.speedup > 1
    assert lines == [
        f"{run.name} has no summary.json: an unfinished run; its metrics are computed from the requests at hand"
    ]


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (("e2e_s",), "fast", 'e2e_s must be a number or null, not "fast"'),
        (("request_id",), 3, "request_id must be text, not 3"),
        (("output_ids",), [1, "two"], 'output_ids[1] must be a whole number or null, not "two"'),
        (
            ("finish_reason",),
            "tired",
            'finish_reason must be "eos" or "error" or "length", not "tired"',
        ),
        (("rounds",), 4, "rounds must be a list, not 4"),
        (("rounds", 1), 4, "rounds[1] must be an object, not 4"),
        (("rounds", 1, "accepted"), "3", 'rounds[1].accepted must be a whole number, not "3"'),
        (("rounds", 1, "committed"), -1, "rounds[1].committed must be a whole number >= 0, not -1"),
        (("rounds", 1, "verify_s"), float("inf"), "Infinity is no number"),
        (("rounds", 1, "commits_s"), [True], "rounds[1].commits_s[0] must be a number, not true"),
    ],
)
@pytest.mark.parametrize("name", ["requests", "baseline"])
def test_a_field_of_a_wrong_kind_is_named_with_its_line(run, name, place, value, reason):
    file = run / f"{name}.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    *way, last = place
    holder = rows[2]
    for step in way:
        holder = holder[step]
    holder[last] = value
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded, lines = problems(run)
    assert lines == [f"{run.name}/{name}.jsonl:3: not a request record ({reason}): left out"]
    assert compare([loaded]).overall["wisp"].finished > 0


@pytest.mark.parametrize("content", ["{", "[]", '{"overall": {}}'])
def test_a_broken_summary_is_computed_anew(run, content):
    (run / "summary.json").write_text(content)
    loaded, (line,) = problems(run)
    assert line.startswith(f"{run.name}/summary.json is not ")
    assert loaded.summary.overall.finished == 8


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"requests": {"planned": 8, "finished": "8", "failed": 0}},
            "requests.finished must be a whole number",
        ),
        ({"overall": None}, "overall must be an object"),
        ({"categories": []}, "categories must be an object"),
        ({"categories": {"math": {}}}, "categories[...].finished is missing"),
        ({"baseline": "none"}, "baseline must be an object or null"),
        ({"lossless": 1}, "lossless must be an object or null"),
        ({"method": None}, "method must be text"),
    ],
)
def test_a_summary_with_a_field_of_a_wrong_kind_is_computed_anew(run, changes, reason):
    change(run / "summary.json", **changes)
    loaded, (line,) = problems(run)
    assert line.startswith(f"{run.name}/summary.json is not a summary of this kit ({reason}")
    assert line.endswith("); its metrics are computed from the requests at hand")
    assert loaded.summary.overall.speedup > 1


@pytest.mark.parametrize(
    ("change_run", "message"),
    [
        (
            lambda run: change(run / "run.json", schema_version=99),
            "was written by a newer specbench-kit (version 99",
        ),
        (
            lambda run: (run / "requests.jsonl").write_text(""),
            "requests.jsonl holds no finished request",
        ),
        (lambda run: (run / "run.json").write_text("{"), "run.json is not valid JSON"),
        (lambda run: change(run / "run.json", method=None), "has a run.json that names no method"),
        (
            lambda run: change(run / "run.json", dataset="gsm8k"),
            "run.json: dataset must be an object",
        ),
        (shutil.rmtree, "cannot read"),
    ],
)
def test_a_run_that_cannot_be_read_is_one_line_and_the_others_are_reported(
    tmp_path, run, change_run, message
):
    change_run(run)
    with pytest.raises(SkitError) as alone:
        load_runs([run])
    assert message in str(alone.value)
    assert str(run) in str(alone.value)
    other_paths = write_methods(tmp_path / "others")
    runs, lines = load_runs([run, tmp_path / "others"])
    assert len(runs) == len(other_paths)
    assert len(lines) == 1
    assert message in lines[0]
    assert str(tmp_path) not in lines[0]
    assert run.name in lines[0]
    assert compare(runs, problems=lines).problems == lines


def test_a_folder_stands_for_its_runs_and_other_folders_are_passed_over(tmp_path):
    paths = write_methods(tmp_path)
    (tmp_path / "a profile").mkdir()
    (tmp_path / "a profile" / "run.json").write_text("{}")
    runs, lines = load_runs([tmp_path])
    assert sorted(run.path for run in runs) == sorted(paths)
    assert lines == []


def test_a_run_named_twice_is_read_once(run):
    assert len(load_runs([run, run.parent, run])[0]) == 1


def test_equal_baselines_are_read_once(tmp_path):
    write_methods(tmp_path)
    runs, _ = load_runs([tmp_path])
    assert len({id(run.baseline) for run in runs}) == 1
