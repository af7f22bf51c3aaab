"""`skit report` and `skit compare` as processes: what they print, what they leave, and how they end."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from command_line import error_line, read_object, skit, skit_here
from report_builders import make_run
from run_builders import in_turn, plain, records_of, write_methods, write_run

from specbench_kit import api
from specbench_kit.reports.render_latex import latex

OLD = Path(__file__).parents[1] / "folders_of_0_2"


@pytest.fixture
def runs(tmp_path):
    out = tmp_path / "results"
    write_methods(out, drafts={"fixed-k:k=3": (3, 0.7), "wisp": (4, 0.8)})
    return out


def regression(tmp_path, slower):
    """A run, and one of the same method after a change that made it slower."""
    old, new = (in_turn(records_of(4, 0.7, 12, 24, slower=factor)) for factor in (1.0, slower))
    return [
        write_run(tmp_path / name, "wisp", side, in_turn(plain(old)))
        for name, side in (("a", old), ("b", new))
    ]


def test_report_of_a_folder_of_runs_in_a_real_process(runs, tmp_path):
    done = skit("report", runs, "--out", tmp_path / "report", "--format", "md,html,csv", "--json")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [
        "report.csv",
        "report.html",
        "report.md",
    ]
    document = json.loads(done.stdout)
    assert len(document["run_dirs"]) == 2
    assert set(document["summary"]) == {"autoregressive", "fixed-k:k=3", "wisp"}
    assert (document["reference"], document["forced"], document["problems"]) == ("wisp", [], [])
    assert "wisp: 1." in done.stderr or "wisp: 2." in done.stderr
    assert f"report: {tmp_path / 'report' / 'report.html'}" in done.stderr


def test_one_run_is_reported_in_its_own_folder_and_several_beside_them(runs):
    run = min(runs.iterdir())
    assert skit_here("report", run, "--format", "md,svg").returncode == 0
    assert (run / "report.md").read_text().startswith("# `fixed-k:k=3` on gsm8k")
    assert (run / "plots" / "speedup.svg").exists()
    before = set(runs.iterdir())
    assert skit_here("report", runs, "--format", "md").returncode == 0
    (report_folder,) = set(runs.iterdir()) - before
    assert "-report-gsm8k-" in report_folder.name
    assert (report_folder / "report.md").read_text().startswith("# 2 methods on gsm8k")


def test_compare_prints_a_table_and_writes_nothing(runs):
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    done = skit_here("compare", runs)
    assert done.returncode == 0
    assert "against" in done.stdout
    assert re.search(r"^autoregressive .* 0\.\d+x +–$", done.stdout, re.MULTILINE), (
        "slower, and shown to be"
    )
    assert "12/12" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before


def test_runs_that_differ_are_refused_in_one_line_and_marked_when_forced(runs, tmp_path):
    records = in_turn(records_of(4, 0.7, 12, 24))
    config = make_run()["config"] | {"dtype": "bfloat16"}
    other_run = write_run(tmp_path, "threshold", records, in_turn(plain(records)), config=config)
    line = error_line(skit_here("compare", runs, other_run))
    assert (
        "they differ in dtype: float32 / bfloat16: give runs of one setting, or all of them with --force"
        in line
    )
    forced = skit_here("compare", runs, other_run, "--force", "--json")
    assert forced.returncode == 0
    assert "FORCED COMPARISON" in forced.stderr
    assert json.loads(forced.stdout)["forced"] == [
        "dtype: float32 (fixed-k:k=3, wisp), bfloat16 (threshold)"
    ]


@pytest.mark.parametrize(("slower", "code"), [(1.0, 0), (1.3, 1)])
def test_a_regression_ends_with_exit_code_1_and_names_run_and_value(tmp_path, slower, code):
    paths = regression(tmp_path, slower)
    done = skit_here("compare", *paths, "--fail-if", "relative_speed<0.95")
    assert done.returncode == code
    if code:
        assert (
            f"failed: wisp #2: relative_speed is 0.7692 (relative_speed<0.95); run {paths[1].name}"
            in done.stderr
        )
    else:
        assert "passed: relative_speed<0.95 holds for no method" in done.stdout


def test_several_conditions_and_json(runs):
    done = skit_here(
        "compare", runs, "--fail-if", "speedup<100", "--fail-if", "itl.p99>1000s", "--json"
    )
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["failed"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fail-if", "speedup"], "--fail-if 'speedup': expected a metric"),
        (["--against", "eagle"], "no run of 'eagle' to compare with"),
        (["--out", "x", "--format", "doc"], "unknown report format 'doc'"),
        (["--out", "x", "--format", ","], "no report format is given"),
    ],
)
def test_bad_options_are_one_line(runs, arguments, message):
    assert message in error_line(skit_here("compare", runs, *arguments))


def test_what_cannot_be_read_is_one_line_each_and_the_rest_is_reported(runs, tmp_path):
    first, second = sorted(runs.iterdir())
    (first / "run.json").write_text(
        json.dumps(json.loads((first / "run.json").read_text()) | {"schema_version": 99})
    )
    file = second / "requests.jsonl"
    file.write_bytes(file.read_bytes()[:-30])
    done = skit_here("report", runs, "--out", tmp_path / "report", "--format", "md", "--json")
    assert done.returncode == 0
    newer, cut = json.loads(done.stdout)["problems"]
    assert newer.startswith(f"{first.name} was written by a newer specbench-kit (version 99")
    assert cut == f"{second.name}/requests.jsonl:12: the last line was cut short: left out"
    assert done.stderr.count("NOT READ") == 2
    assert f"NOT READ: {newer}" in (tmp_path / "report" / "report.md").read_text()


@pytest.mark.parametrize("command", ["compare", "report"])
def test_a_folder_that_is_not_there_is_an_error_before_anything_is_compared(runs, command):
    done = skit_here(command, runs, runs / "nope")
    assert (done.returncode, done.stdout) == (2, "")
    assert error_line(done) == f"there is no folder '{runs / 'nope'}'"


def test_a_run_that_cannot_be_read_passes_no_condition(runs):
    first, _ = sorted(runs.iterdir())
    (first / "run.json").write_text("{")
    for condition in ("speedup<0.1", "speedup<100"):
        line = error_line(skit_here("compare", runs, "--fail-if", condition))
        assert line.startswith("--fail-if cannot be judged, since not all runs could be read: ")


DISTURBED = [
    {
        "lanes": {"wisp": {"cpu_share": 0.04, "spread": 6.0}},
        "steal": None,
        "load": [9.5, 11.25],
        "cpus": 2,
    },
]
WARNING = "DISTURBED MACHINE: wisp had a processor for 4% of its time (at least 90%); "


@pytest.fixture
def busy(tmp_path):
    """A quiet run, and one that was timed on a disturbed machine."""
    out, records = tmp_path / "mixed", in_turn(records_of(4, 0.7, 12, 24))
    write_run(out, "fixed-k:k=3", records, in_turn(plain(records)))
    write_run(out, "wisp", records, in_turn(plain(records)), machine=DISTURBED)
    return out


def test_time_of_a_disturbed_machine_passes_and_fails_nothing(busy):
    for condition in ("speedup<0.1", "speedup<100"):
        done = skit_here("compare", busy, "--fail-if", condition, "--json")
        assert done.returncode == 3
        assert "inconclusive: run " in done.stderr
        assert "wisp" in json.loads(done.stdout)["inconclusive"][0]
        assert "passed" not in done.stderr
        assert json.loads(done.stdout)["warnings"][0].startswith(WARNING)


@pytest.mark.parametrize(
    ("control", "caution", "words"),
    [
        ({"speed": 1.01, "interval": [0.96, 1.06]}, "BUSY MACHINE", "busy"),
        (None, "DISTURBED MACHINE", "disturbed"),
    ],
)
def test_a_gate_and_the_cautions_have_one_word_for_the_state_of_a_machine(
    tmp_path, control, caution, words
):
    lanes = {name: {"cpu_share": 0.7, "spread": 1.5} for name in ("autoregressive", "wisp")}
    records = in_turn(records_of(4, 0.7, 12, 24))
    machine = [{"lanes": lanes, "control": control, "cpus": 2}]
    run = write_run(tmp_path, "wisp", records, in_turn(plain(records)), machine=machine)
    done = skit_here("compare", run, "--fail-if", "speedup<0.1")
    assert done.returncode == 3
    assert f"{caution}: autoregressive had a processor for 70%" in " ".join(done.stdout.split())
    refused = f"inconclusive: run {run.name} was timed on a {words} machine: autoregressive had a processor for 70%"
    assert refused in done.stderr


def test_what_holds_no_time_is_judged_on_a_disturbed_machine_too(busy):
    assert skit_here("compare", busy, "--fail-if", "acceptance_length<100").returncode == 1
    passed = skit_here("compare", busy, "--fail-if", "acceptance_length<1")
    assert (passed.returncode, "passed: acceptance_length<1 holds" in passed.stdout) == (0, True)
    refused = skit_here(
        "compare", busy, "--fail-if", "acceptance_length<100", "--fail-if", "speedup<100"
    )
    assert refused.returncode == 1
    assert "speedup" not in refused.stderr.partition("failed: ")[2].splitlines()[0]


def test_a_disturbed_machine_is_told_before_the_headline(busy, tmp_path):
    done = skit_here("compare", busy, "--out", tmp_path / "joint", "--format", "md,html,csv,latex")
    assert done.returncode == 0
    assert " ".join(done.stdout.split()).startswith(WARNING)
    text = (tmp_path / "joint" / "report.md").read_text()
    title, first, headline, *_ = text.split("\n\n")
    assert title.startswith("# 2 methods")
    assert WARNING in first
    assert "load average 9.5 at the start and 11.2 at the end on 2 processors" in first
    assert headline.startswith("**`")
    assert WARNING in (tmp_path / "joint" / "report.html").read_text()
    rows = list(csv.DictReader((tmp_path / "joint" / "report.csv").read_text().splitlines()))
    assert {row["method"] for row in rows if row["warnings"].startswith(WARNING)} == {"wisp"}
    assert latex(WARNING) in (tmp_path / "joint" / "report.tex").read_text()
    (run,) = (path for path in busy.iterdir() if "wisp" in path.name)
    assert skit_here("report", run, "--format", "md").returncode == 0
    assert WARNING in (run / "report.md").read_text().split("\n\n")[1]


def test_a_quiet_run_says_nothing_of_the_machine(runs):
    run = min(runs.iterdir())
    assert skit_here("report", run, "--format", "md").returncode == 0
    assert "MACHINE" not in (run / "report.md").read_text()


def test_nothing_to_report_is_an_error(tmp_path):
    assert "cannot read" in error_line(skit_here("report", tmp_path))
    run = write_run(tmp_path, "wisp", [])
    line = error_line(skit_here("report", run))
    assert line == f"{run / 'requests.jsonl'} holds no finished request: there is nothing to report"


def test_an_index_lists_every_report_of_a_folder(runs, tmp_path):
    root = shutil.copytree(runs, tmp_path / "copied")
    paths = sorted(root.iterdir())
    assert (
        skit_here("report", *paths, "--out", root / "both", "--format", "md,html,json").returncode
        == 0
    )
    for path in paths:
        (path / "report.md").write_text("# A page\n")
    run = read_object(paths[0] / "run.json")
    run["dataset"] |= {"name": "<b>", "source": "sample"}
    (paths[0] / "run.json").write_text(json.dumps(run))
    (paths[1] / "run.json").write_text("{")
    assert error_line(skit_here("report", "--index", tmp_path / "none")).startswith(
        "there is no folder"
    )
    assert error_line(skit_here("report")).startswith("give run directories")
    shutil.copytree(OLD / "capacity", root / "capacity")
    assert skit_here("report", root / "capacity").returncode == 0
    assert skit_here("report", "--index", root).returncode == 0
    text = (root / "index.md").read_text()
    assert text.startswith("# 4 reports in `copied`")
    assert "| [capacity](capacity/report.html) | capacity | – | modelled | " in text
    assert api.load(root / "capacity").headline.replace("`", "") in text.replace("`", "")
    assert "| [both](both/report.html) | `" in text
    assert f"[{paths[0].name}]({paths[0].name}/report.md) | " in text
    assert f"{paths[1].name} cannot be read: " in text
    assert "| SAMPLE DATA: " in text
    assert "acceptance length" in text.partition(f"[{paths[0].name}]")[2].partition("\n")[0]
    assert "<b>" not in (root / "index.html").read_text().replace("&lt;b&gt;", "")
