"""A report says what its intervals cover of what lasts as long as a process."""

from typing import Any

import pytest
from report_builders import comparison_of, make_run, render_comparison, summary_of
from run_builders import plain, records_of

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.paired import Side, speedup
from specbench_kit.metrics.result import Comparison
from specbench_kit.reports.comparison.wording import process_words


def thrice(requests: int) -> list[RequestRecord]:
    """Requests that were decoded in three repeats."""
    return [
        record for repeat in range(3) for record in records_of(3, 0.7, requests, 12, repeat=repeat)
    ]


def compared(processes: int, requests: int = 8, **run: object) -> Comparison:
    """One method whose repeats the run says were of so many processes."""
    records = thrice(requests)
    baseline = plain(records)
    config = make_run()["config"] | {"processes": processes}
    return comparison_of(records, baseline, summary_of(records, baseline), config=config, **run)


def test_a_run_in_several_processes_covers_what_lasts_as_long_as_one() -> None:
    comparison = compared(3)
    words = process_words(comparison)
    assert words.startswith(
        "Each prompt was timed in 3 processes; intervals and verdicts cover what lasts as long as"
    )
    assert words in render_comparison(comparison)


@pytest.mark.parametrize("processes", [1, 3])
def test_its_interval_is_wider_than_that_of_repeats(processes: int) -> None:
    comparison = compared(processes)
    row = comparison.overall["fixed-k:k=4"]
    records = thrice(8)
    side = Side.of(records, plain(records))
    repeats = speedup(
        side, {record.request_id: number for number, record in enumerate(records[:8])}
    )
    assert repeats is not None
    pairs = {"speedup": repeats.interval(), "typical_speedup": repeats.typical_interval()}
    for metric, bounds in pairs.items():
        (low, high), (lower, higher) = bounds or (1, 1), row.bounds(metric) or (1, 1)
        assert lower < low < high < higher


def test_a_run_in_one_process_says_what_its_interval_assumes() -> None:
    comparison = compared(1)
    words = process_words(comparison)
    assert words == (
        "Intervals and verdicts take what lasts as long as a process, such as where its memory lies, to change a "
        "method's speed by 0.5%; `skit bench --processes 3` measures it."
    )
    assert words in render_comparison(comparison)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"time_kind": "modelled"}, ""),
        (
            {"imported": {"tool": "spec-bench", "notes": []}},
            "Intervals and verdicts take what lasts as long as a process, such as where its memory lies, to change a "
            "method's speed by 0.5%.",
        ),
    ],
)
def test_times_of_no_process_or_of_another_tool(run: dict[str, Any], words: str) -> None:
    assert process_words(compared(1, **run)) == words


def test_too_few_prompts_show_no_processes() -> None:
    assert process_words(compared(3, requests=4)).endswith(
        ": too few prompts were timed by all methods in as many processes."
    )
