"""Metrics that other packages bring: their values, intervals and columns, and what becomes of those that fail."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import skit_here

from specbench_kit import api
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.added import AddedMetric, added_metrics
from specbench_kit.metrics.added_values import values_and_intervals

OPTIONS = {"deployment": "wan", "limit": 12}
METHODS = ["fixed-k:k=1", "fixed-k:k=4"]


class WholeDrafts(AddedMetric):
    title = "whole drafts"
    definition = "drafts that the target accepted to their end / drafts"
    unit = "share"

    def of(self, records: Sequence[RequestRecord]) -> float | None:
        drafts = [each for record in records for each in record.rounds if each.submitted]
        whole = sum(each.accepted == each.submitted for each in drafts)
        return whole / len(drafts) if drafts else None


class TokensPerAnswer(AddedMetric):
    """Divides by the number of requests, without a thought for none."""

    title = "tokens per answer"
    definition = "output tokens / requests"

    def of(self, records: Sequence[RequestRecord]) -> float | None:
        return sum(len(record.output_ids) for record in records) / len(records)


class Failing(AddedMetric):
    title = "failing"
    definition = "never known"

    def of(self, records: Sequence[RequestRecord]) -> float | None:
        raise ZeroDivisionError("no such number")


class Endless(Failing):
    def of(self, records: Sequence[RequestRecord]) -> float | None:
        return float("inf")


class Worded(Failing):
    def of(self, records: Sequence[RequestRecord]) -> float | None:
        return "many"  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that no other test has filled, and whose entry points were looked for."""
    for name, value in (("_entries", {}), ("_broken", {}), ("_discovered", True)):
        monkeypatch.setattr(added_metrics, name, value)


def replayed(out: Path) -> api.Result:
    return api.replay(METHODS, "qwen2.5-coder", out=out, **OPTIONS)


def test_a_metric_is_a_column_with_its_interval_on_every_page_and_in_every_file(
    tmp_path: Path,
) -> None:
    added_metrics.register("whole_drafts")(WholeDrafts)
    result = replayed(tmp_path)
    table = result.to_pandas().set_index("spec")
    one, four = table.loc["fixed-k:k=1"], table.loc["fixed-k:k=4"]
    # With a single token to be right, a draft is whole where its token is accepted.
    assert one["whole_drafts"] == pytest.approx(one["acceptance_rate"])
    assert one["whole_drafts_low"] < one["whole_drafts"] < one["whole_drafts_high"]
    assert 0 < four["whole_drafts"] < four["acceptance_rate"] < 1
    # Both are ratios of sums over the same prompts, so that their intervals are about as wide.
    own, known = (
        one[f"{name}_high"] - one[f"{name}_low"] for name in ("whole_drafts", "acceptance_rate")
    )
    assert own == pytest.approx(known, rel=0.25)
    result.report(tmp_path / "page", ["md"])
    page = (tmp_path / "page" / "report.md").read_text()
    assert "| whole drafts |" in page
    assert "`whole_drafts`: drafts that the target accepted to their end / drafts" in page


def test_a_result_is_read_where_its_metric_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added_metrics.register("whole_drafts")(WholeDrafts)
    made = replayed(tmp_path)
    made.report(tmp_path / "page", ["md", "json"])
    value = made.to_pandas()["whole_drafts"].iloc[-1]
    monkeypatch.setattr(added_metrics, "_entries", {})
    read = api.load(tmp_path / "page")
    assert read.to_pandas()["whole_drafts"].iloc[-1] == pytest.approx(value, rel=1e-8)
    read.report(tmp_path / "again", ["md"])
    page = (tmp_path / "again" / "report.md").read_text()
    assert "| whole_drafts |" in page
    assert "| whole drafts |" not in page


def test_a_result_that_was_made_without_a_metric_has_an_empty_column(tmp_path: Path) -> None:
    replayed(tmp_path).report(tmp_path / "page", ["json"])
    added_metrics.register("whole_drafts")(WholeDrafts)
    chosen = ("--columns", "typical-speedup,whole-drafts", "--format", "md,latex")
    done = skit_here("report", tmp_path / "page", *chosen, "--out", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    assert "whole drafts" not in (tmp_path / "again" / "report.md").read_text()


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Failing, "ZeroDivisionError: no such number"),
        (Worded, "TypeError: of() must return a number or None, not str"),
    ],
)
def test_a_metric_that_fails_costs_no_result(
    kind: type[AddedMetric], says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    added_metrics.register("odd")(kind)
    added_metrics.register("whole_drafts")(WholeDrafts)
    table = replayed(tmp_path).to_pandas()
    assert "odd" not in table
    assert table["whole_drafts"].notna().sum() == len(METHODS)
    (line,) = (record.getMessage() for record in caplog.records)
    assert line == f"LEFT OUT: the metric 'odd' has no values: {says}"


def test_a_metric_is_never_asked_for_no_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the only prompt of a category nothing is left."""
    added_metrics.register("tokens_per_answer")(TokensPerAnswer)
    one = api.replay(METHODS, "qwen2.5-coder", out=tmp_path, deployment="wan", limit=1)
    (answer,) = set(one.to_pandas()["tokens_per_answer"])
    assert answer >= 1
    assert values_and_intervals([], {}) == (
        {"tokens_per_answer": None},
        {"tokens_per_answer": None},
    )
    assert not caplog.records


def test_a_number_that_json_cannot_hold_is_none(tmp_path: Path) -> None:
    added_metrics.register("endless")(Endless)
    replayed(tmp_path)
    for file in tmp_path.rglob("summary.json"):
        assert json.loads(file.read_text())["overall"]["added"] == {"endless": None}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("speedup", "is called like one of the kit"),
        ("Whole drafts", "has a name that cannot be a column's"),
    ],
)
def test_a_name_that_cannot_be_is_left_out(
    name: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    added_metrics.register(name)(WholeDrafts)
    assert added_metrics.all() == {}
    assert says in added_metrics.left_out()[name]
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.endswith(": rename its entry point")
