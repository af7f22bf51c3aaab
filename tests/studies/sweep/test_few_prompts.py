"""A sweep over hardly any prompts says nothing about where a method pays."""

from typing import Any

import pytest

from specbench_kit.reports.sweep.report import break_even_sentence
from specbench_kit.studies.sweep.axes import SweepAxis
from specbench_kit.studies.sweep.grid import SweepRow
from specbench_kit.studies.sweep.run import summarise


def row(rtt_s: float, speedup: float, units: int) -> SweepRow:
    overall: dict[str, Any] = {"speedup": speedup, "speedup_units": units, "intervals": {"speedup": None}}
    overall |= {"ttft": {"mean": 1.0}, "tpot": {"mean": 1.0, "p95": 1.0}, "phase_seconds": {}}
    return SweepRow({"link.rtt_s": rtt_s}, "wisp", "wisp", overall)


@pytest.mark.parametrize(("units", "verdict"), [(5, "too few prompts to tell"), (6, "in part")])
def test_break_even_needs_six_prompts(units: int, verdict: str) -> None:
    rows = [row(0.01, 1.5, units), row(0.1, 0.5, units)]
    (line,) = summarise(rows, [SweepAxis("link.rtt_s", (0.01, 0.1))])["break_even"]
    assert line["verdict"] == verdict
    assert ("too few prompts" in break_even_sentence(line, [0.01, 0.1])) is (units < 6)
    assert bool(line["crossings"]) is (units >= 6)
