"""A sweep over hardly any prompts says nothing about where a method pays."""

import pytest
from msgspec.structs import replace
from report_builders import make_row

from specbench_kit.studies.sweep.axes import SweepAxis
from specbench_kit.studies.sweep.report import SweepRow, break_even_sentence
from specbench_kit.studies.sweep.run import summarise


def row(rtt_s: float, speedup: float, units: int) -> SweepRow:
    overall = replace(make_row(), speedup=speedup, speedup_units=units)
    return SweepRow({"link.rtt_s": rtt_s}, "wisp", "wisp", overall)


@pytest.mark.parametrize(("units", "verdict"), [(5, "too few prompts to tell"), (6, "in part")])
def test_break_even_needs_six_prompts(units: int, verdict: str) -> None:
    rows = [row(0.01, 1.5, units), row(0.1, 0.5, units)]
    (line,) = summarise(rows, [SweepAxis("link.rtt_s", (0.01, 0.1))]).break_even
    assert line.verdict == verdict
    assert ("too few prompts" in break_even_sentence(line, [0.01, 0.1])) is (units < 6)
    assert bool(line.crossings) is (units >= 6)
