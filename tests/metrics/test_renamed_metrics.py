"""Metric names of earlier releases are read, with one warning line that names today's."""

import json

import pytest
from run_builders import in_turn, plain, records_of, write_run

from specbench_kit.core import renamed
from specbench_kit.core.renamed import RENAMED, with_current_names
from specbench_kit.metrics.condition import Condition
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.metrics.vocabulary import METRICS
from specbench_kit.papers.experiment import _published_numbers
from specbench_kit.reports.comparison.look import parse_columns
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.studies.interchange.numbers import numbers_of
from specbench_kit.studies.reproduction.derived import GridRows

RENAMING = "tokens_per_verify is now called acceptance_length"


@pytest.fixture(autouse=True)
def no_warning_yet(monkeypatch):
    """Forget earlier warnings: a process prints each once."""
    monkeypatch.setattr(renamed, "_WARNED", set())


@pytest.fixture
def earlier_run(tmp_path):
    """Return the folder of a run whose summary.json was written with the metric names of an earlier release."""
    records = in_turn(records_of(4, 0.7, 8, 24))
    folder = write_run(tmp_path, "wisp", records, in_turn(plain(records)))
    text = (folder / "summary.json").read_text()
    for earlier, today in RENAMED.items():
        text = text.replace(f'"{today}":', f'"{earlier}":')
    (folder / "summary.json").write_text(text)
    assert '"tokens_per_verify":' in text
    return folder


def test_every_new_name_is_a_metric():
    assert set(RENAMED.values()) <= {metric.name for metric in METRICS}
    assert not set(RENAMED) & {metric.name for metric in METRICS}


def test_a_condition_on_an_earlier_name_is_judged_by_the_metric_of_today(capsys):
    condition = Condition.parse("tokens_per_verify<2")
    assert (condition.metric, condition.limit, condition.is_timed) == ("acceptance_length", 2, False)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"warning: --fail-if: {RENAMING}\n")
    Condition.parse("acceptance_length<2")
    assert capsys.readouterr().err == ""


def test_a_summary_with_earlier_names_is_read(earlier_run, capsys):
    (run,) = load_runs([earlier_run])[0]
    assert run.problems == ()
    assert run.summary["overall"]["acceptance_length"] > 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {earlier_run.name}/summary.json: ")
    assert RENAMING in line


def test_a_run_directory_and_an_export_read_earlier_names(earlier_run, capsys):
    directory = RunDirectory.open(earlier_run)
    overall = directory.summary()["overall"]
    assert "tokens_per_verify" not in json.dumps(directory.summary())
    assert numbers_of(directory)["acceptance_length"] == overall["acceptance_length"]
    assert all(RENAMING in line for line in capsys.readouterr().err.splitlines())


def test_names_are_replaced_wherever_they_are_keys_and_reported_once(capsys):
    content = {"rows": [{"tokens_per_verify": 2.0}, {"tokens_per_verify": 3.0, "text": "tokens_per_verify"}]}
    assert with_current_names(content, "file") == {
        "rows": [{"acceptance_length": 2.0}, {"acceptance_length": 3.0, "text": "tokens_per_verify"}]
    }
    assert capsys.readouterr().err == f"warning: file: {RENAMING}\n"


def test_an_experiment_with_an_earlier_name_is_read(capsys):
    (number,) = _published_numbers({"series": "a", "metric": "tokens_per_verify", "value": 2.0}, "predicted")
    assert number.metric == "acceptance_length"
    rows = [{"series": "a", "acceptance_length": {"mean": 4.0}}, {"series": "b", "acceptance_length": {"mean": 2.0}}]
    (ratio,) = GridRows(rows).ratios({"r": {"of": "a/tokens_per_verify", "over": "b/tokens_per_verify"}})
    assert ratio["ratio"] == {"mean": 2.0}
    assert all(RENAMING in line for line in capsys.readouterr().err.splitlines())


def test_a_column_of_an_earlier_name_is_shown(capsys):
    assert parse_columns("speedup,tokens-per-verify") == ("speedup (95%)", "acceptance length")
    assert capsys.readouterr().err == "warning: --columns: tokens-per-verify is now called acceptance-length\n"


def test_the_earlier_column_name_of_the_acceptance_rate_is_read() -> None:
    assert parse_columns("acceptance,speedup") == ("acceptance rate", "speedup (95%)")
