"""Rows that tables fold: of methods that few readers look for, where nobody named them."""

import re
from pathlib import Path

import pytest
from run_builders import in_turn, plain, records_of, write_run

from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.result import Comparison
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.reports import render_html, render_markdown
from specbench_kit.reports.comparison.report import build
from specbench_kit.reports.comparison.terminal import print_comparison

FEW_LOOK_FOR = ("banditspec", "tapout", "nightjar")


def compared(out: Path, is_named: bool, slow: str = "banditspec") -> Comparison:
    """Four methods on twelve prompts, one of which accepts least."""
    records = in_turn(records_of(4, 0.9, 12, 24))
    baseline = in_turn(plain(records))
    changes = {} if is_named else {"is_named": False}
    for seed, method in enumerate(("fixed-k", "threshold", "nightjar", "tapout")):
        alpha = 0.9 if method in ("fixed-k", "threshold") else 0.3
        write_run(out, method, in_turn(records_of(4, alpha, 12, 24, seed)), baseline, **changes)
    write_run(out, slow, in_turn(records_of(4, 0.1, 12, 24, 9)), baseline, **changes)
    return compare(load_runs([out])[0])


def first_table(text: str, title: str) -> list[str]:
    """The methods of the first table below a heading."""
    table = re.search(rf"## {title}.*?\n\n(\|.*?)\n\n", text, re.DOTALL)
    assert table is not None
    return [line.split("`")[1].partition(" ")[0] for line in table[1].splitlines()[2:]]


def test_all_folds_what_few_look_for_and_says_how_many_rows(tmp_path: Path) -> None:
    text = render_markdown.render(build(compared(tmp_path, is_named=False)))
    assert set(first_table(text, "Results")) == {"fixed-k", "threshold", "autoregressive"}
    summary = re.search(
        r"<summary>(More: 3 rows [^<]*)</summary>\n\n(.*?)</details>", text, re.DOTALL
    )
    assert summary is not None
    assert all(f"`{name}" in summary[1] and f"| `{name}" in summary[2] for name in FEW_LOOK_FOR)
    assert text.count("<summary>More: 3 rows") == 3  # results, against, averages


def test_the_page_opens_them_on_a_click(tmp_path: Path) -> None:
    page = render_html.render(build(compared(tmp_path, is_named=False)), {})
    folded = re.search(r"<details[^>]*>\s*<summary>More: 3 rows.*?</details>", page, re.DOTALL)
    assert folded is not None
    assert all(name in folded[0] for name in FEW_LOOK_FOR)


def test_what_was_named_is_not_folded(tmp_path: Path) -> None:
    comparison = compared(tmp_path, is_named=True)
    assert comparison.folded == []
    text = render_markdown.render(build(comparison))
    assert {*FEW_LOOK_FOR} <= {*first_table(text, "Results")}
    assert "More: " not in text


def test_the_fastest_and_its_equals_are_not_folded(tmp_path: Path) -> None:
    records = in_turn(records_of(4, 0.9, 12, 24))
    baseline = in_turn(plain(records))
    for method in ("banditspec", "nightjar"):
        write_run(tmp_path, method, records, baseline, is_named=False)
    slow = in_turn(records_of(4, 0.1, 12, 24, 9))
    for method in ("tapout", "fixed-k"):
        write_run(tmp_path, method, slow, baseline, is_named=False)
    comparison = compare(load_runs([tmp_path])[0])
    assert [label.partition(" ")[0] for label in comparison.folded] == ["tapout"]


def test_a_terminal_counts_folded_rows_among_those_of_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    print_comparison(Console(width=100), compared(tmp_path, is_named=False))
    shown = capsys.readouterr().out
    assert "3 more rows in the report" in shown
    assert not any(re.search(rf"^{name}\b", shown, re.MULTILINE) for name in FEW_LOOK_FOR)
