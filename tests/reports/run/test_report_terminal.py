"""Tables of methods on a terminal: what they show, and that nothing is cut inside a word from 60 columns on."""

from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace
from report_builders import (
    autoregressive_like,
    comparison_of,
    make_run,
    render_comparison,
    render_run,
    simulate_chain,
    summary_of,
)
from rich.console import Console
from run_builders import in_turn, plain, records_of, write_methods, write_run

from specbench_kit.cli.common import say
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.losslessness import Losslessness, summarise_checks
from specbench_kit.metrics.result import Comparison
from specbench_kit.metrics.run_data import load_runs
from specbench_kit.metrics.verdicts import NO_DIFFERENCE
from specbench_kit.reports import render_terminal
from specbench_kit.reports.comparison.terminal import FIRST_ROWS, WINNER, print_comparison
from specbench_kit.reports.document import Column, Estimate, Table
from specbench_kit.reports.terminal_table import LONGEST_WORD

RECORDS = simulate_chain(requests=10, rounds=20, draft=4, alpha=0.7)
BASELINE = autoregressive_like(RECORDS)
LONG = "fixed-k:k=4,drafter=first-of,first-of.drafters=suffix+prompt-lookup"


def shown(comparison: Comparison, width: int) -> str:
    console = Console(file=StringIO(), width=width)
    print_comparison(console, comparison)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@cache
def one_method(errors: int = 0, method: str = "fixed-k:k=4") -> Any:
    """One method beside plain decoding, with so many outputs that are wrong."""
    records = [
        replace(r, output_ids=[*r.output_ids[:-1], 0]) if i < errors else r
        for i, r in enumerate(RECORDS)
    ]
    checks = [
        Losslessness(r.request_id, "error", 1, 2, 3, 0.5)
        if i < errors
        else Losslessness(r.request_id, "identical")
        for i, r in enumerate(records)
    ]
    dataset = make_run()["dataset"] | {"source": "sample"}
    summary = summary_of(records, BASELINE, to_builtins(summarise_checks(checks)))
    return comparison_of(
        records, BASELINE, summary, method=method, dataset=dataset, options={"k": 4}
    )


def test_one_method_has_a_row_beside_the_baseline_and_its_options_below() -> None:
    lines = shown(one_method(), 140).splitlines()
    rows = {line.split()[0]: line for line in lines}
    assert "1.00" in rows["autoregressive"]
    assert rows["fixed-k"].endswith("10/10")
    assert "x (" in rows["fixed-k"]
    assert rows["options:"] == "options: fixed-k (k=4)"
    assert sum(line.startswith("autoregressive") for line in lines) == 1
    assert lines[0].startswith("fixed-k (k=4): ")
    assert "measured time" in lines[1]


def test_wrong_outputs_are_in_the_row_and_in_a_caution() -> None:
    text = shown(one_method(errors=1), 140)
    assert "NOT LOSSLESS" in text
    assert "1 WRONG" in text
    assert text.count("SAMPLE DATA") == 1
    assert "NOT LOSSLESS" not in shown(one_method(), 140)


@pytest.mark.parametrize(("alpha", "accepts"), [(0.0, False), (0.5, True)])
def test_a_method_whose_drafts_were_all_rejected_says_so_in_a_line(
    alpha: float, accepts: bool
) -> None:
    records = simulate_chain(8, rounds=5, draft=4, alpha=alpha)
    baseline = autoregressive_like(records)
    summary = summary_of(records, baseline)
    line = "` sent 160 drafted tokens, and the target accepted none"
    assert (line in render_run(make_run(), summary, records)) is not accepts
    assert (line in render_comparison(comparison_of(records, baseline, summary))) is not accepts


def test_a_speedup_over_few_prompts_is_said_to_tell_nothing() -> None:
    records = simulate_chain(requests=3, rounds=20, draft=4, alpha=0.7)
    baseline = autoregressive_like(records)
    assert "too few prompts to tell" in shown(
        comparison_of(records, baseline, summary_of(records, baseline)), 140
    )


def test_one_method_and_several_have_the_same_columns(comparison: Comparison) -> None:
    single, several = (
        next(line.split() for line in text.splitlines() if line.startswith("method"))
        for text in (shown(one_method(), 200), shown(comparison, 200))
    )
    assert [title for title in several if title != "against"] == single


def words_of(text: str) -> set[str]:
    return set(text.split())


def is_whole(word: str, words: set[str]) -> bool:
    """Return True for one of the words, or for a part of a long one between its punctuation."""
    marks = ",;+/&"
    long = [long_word for long_word in words if len(long_word) > LONGEST_WORD and word in long_word]
    return word in words or any(
        long_word[: long_word.index(word)][-1:] in marks
        and (long_word.endswith(word) or word[-1] in marks)
        for long_word in long
    )


@pytest.mark.parametrize("width", [60, 61, 70, 80, 100, 120])
@pytest.mark.parametrize("several", [False, True])
def test_no_word_is_cut_and_no_line_is_too_long(
    several: bool, width: int, comparison: Comparison
) -> None:
    shown_comparison = comparison if several else one_method(errors=1, method=LONG)
    text, wide = (shown(shown_comparison, columns) for columns in (width, 1000))
    assert max(map(len, text.splitlines())) <= width
    assert [word for word in words_of(text) if not is_whole(word, words_of(wide))] == []
    assert {word for word in words_of(wide) if len(word) <= LONGEST_WORD} <= words_of(text)


def test_rows_of_one_method_keep_their_options_and_the_star_stands_behind_the_name(
    tmp_path: Path,
) -> None:
    write_methods(tmp_path)
    comparison = compare(load_runs([tmp_path])[0])
    lines = shown(comparison, 60).splitlines()
    assert {"fixed-k:k=3", "fixed-k:k=6"} <= words_of("\n".join(lines))
    starred = [line for line in lines if f" {WINNER}" in line and not line.startswith(WINNER)]
    assert {line.split()[0] for line in starred} == {comparison.reference.split()[0]}
    assert all(line.split()[1] == WINNER for line in starred)


def starred(comparison: Comparison) -> list[str]:
    """The rows with a star."""
    return [line for line in shown(comparison, 200).splitlines() if WINNER in line.split()[1:3]]


def write_again(out: Path, method: str, alpha: float, **changes: object) -> None:
    """Write a run on eight prompts, which is the faster the more of its drafts are accepted."""
    records = in_turn(records_of(4, alpha, 8, 24))
    write_run(out, method, records, in_turn(plain(records)), **changes)


@pytest.mark.parametrize("alphas", [(0.6, 0.8), (0.8, 0.6)], ids=["second faster", "first faster"])
def test_of_two_runs_of_one_method_none_has_a_star(
    tmp_path: Path, alphas: tuple[float, float]
) -> None:
    for alpha in alphas:
        write_again(tmp_path, "wisp", alpha)
    comparison = compare(load_runs(sorted(tmp_path.iterdir()))[0])
    assert len(comparison.overall) > 2
    assert starred(comparison) == []
    assert "fastest lossless" not in shown(comparison, 200)


def test_a_star_stands_at_no_run_that_another_run_of_its_method_outdoes(tmp_path: Path) -> None:
    for method, alpha in (("wisp", 0.6), ("wisp", 0.65), ("oracle", 0.9)):
        write_again(tmp_path, method, alpha)
    comparison = compare(load_runs(sorted(tmp_path.iterdir()))[0])
    rows = comparison.overall
    assert comparison.reference == "wisp #1"
    assert (rows["wisp #2"].typical_relative_speed or 0.0) > 1
    assert rows["wisp #2"].verdict == NO_DIFFERENCE
    assert starred(comparison) == []


def test_a_named_reference_has_a_star_only_if_nothing_is_faster(tmp_path: Path) -> None:
    for method, alpha in (("wisp", 0.6), ("threshold", 0.65)):
        write_again(tmp_path, method, alpha)
    runs = load_runs([tmp_path])[0]
    against_slower, against_faster = (compare(runs, against=name) for name in ("wisp", "threshold"))
    assert against_slower.overall["threshold"].verdict == NO_DIFFERENCE
    assert [line.split()[0] for line in starred(against_faster)] == ["threshold"]
    assert starred(against_slower) == []


@pytest.mark.parametrize("width", [60, 80, 120])
def test_any_table_keeps_its_words_whole_and_repeats_its_first_column(width: int) -> None:
    words = [
        "a-rather-long-name",
        "/a/path/of/many/parts/that/is/longer/than/a/line/of/most/terminals/file.json",
    ]
    columns = ["name", "notes", *(Column(f"figure {i}", "times") for i in range(8))]
    rows = [
        [
            words[0],
            f"{words[1]} and more words",
            *(Estimate(1.5, (1.25, 1.75), " ≈") for _ in range(8)),
        ]
    ]
    console = Console(file=StringIO(), width=width)
    render_terminal.show(console, [Table(columns, rows)])
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    blocks = text.split("\n\n")
    assert all(words[0] in block for block in blocks)
    assert len(blocks) > 1
    assert text.count("(1.25–1.75) ≈") == 8
    assert words_of(words[1].replace("/", "/ ").removesuffix(" ")) <= words_of(
        text.replace("/", "/ ")
    )


def test_lines_of_commands_wrap_between_words_on_a_terminal_alone() -> None:
    line = f"report: {'folder/' * 12}report.md and several more words that no longer fit into a line of sixty"
    for is_terminal in (True, False):
        console = Console(file=StringIO(), width=60, force_terminal=is_terminal, color_system=None)
        say(console, line)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert text.split() == line.split()
        assert (text == f"{line}\n") is not is_terminal
        assert all(len(part) <= 60 or " " not in part for part in text.splitlines()) is is_terminal


def test_a_comparison_goes_from_fast_to_slow_and_says_what_intervals_show(
    comparison: Comparison,
) -> None:
    lines = shown(comparison, 120).splitlines()
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert set(comparison.overall) <= set(rows)
    assert f" {comparison.overall['threshold'].typical_speedup:.2f}x (1.4" in rows["threshold"]
    assert rows["threshold"].endswith("12/12")
    assert f"{comparison.reference} *" in "\n".join(lines)
    speeds = [
        comparison.overall[name].typical_speedup or 1.0
        for name in rows
        if name in comparison.overall
    ]
    assert speeds == sorted(speeds, reverse=True)
    assert {"tok/s", "typical"} <= set(" ".join(lines).split())
    text = " ".join(" ".join(lines).split())
    assert (
        f"{comparison.reference}: {comparison.overall[comparison.reference].typical_speedup:.2f}x the speed"
        in text
    )
    assert "slower" in text


def test_of_many_rows_the_fastest_are_shown_and_what_they_are_against(tmp_path: Path) -> None:
    drafts = {f"fixed-k:k={length}": (length, 0.8) for length in range(1, 15)}
    write_methods(tmp_path, drafts=drafts)
    slowest = list(compare(load_runs([tmp_path])[0]).from_fast_to_slow().overall)[-2]
    named = compare(load_runs([tmp_path])[0], against=slowest)
    lines = shown(named, 120).splitlines()
    rows = [line for line in lines if line.rstrip().endswith("12/12")]
    assert len(rows) == FIRST_ROWS + 1
    assert any(row.startswith(slowest) for row in rows)
    assert f"against: speed relative to {slowest}" in "\n".join(lines)
    assert f"{len(named.overall) - len(rows) - 1} more rows in the report" in lines
