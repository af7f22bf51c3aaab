"""The figure of which method is the fastest where."""

from pathlib import Path

import pytest

from specbench_kit.deployments.fields import Value
from specbench_kit.studies.sweep.report import FastestMethod, SweepSummary, write_map

pytestmark = pytest.mark.figures

FASTEST = {("0.5+0.2", 0.01): "specinfer", ("0.9", 0.01): "fixed-k:k=4", ("0.9", 0.2): "autoregressive"}
AXES: dict[str, list[Value]] = {"draft.ranks": ["0.5+0.2", "0.9"], "link.rtt_s": [0.01, 0.2], "link.jitter_s": [0.0]}


def summary(axes: dict[str, list[Value]], fastest: list[FastestMethod]) -> SweepSummary:
    return SweepSummary(axes, [], [], fastest, [])


def test_every_cell_says_who_is_fastest_and_how_fast(tmp_path: Path) -> None:
    points = [
        FastestMethod({"draft.ranks": ranks, "link.rtt_s": rtt_s, "link.jitter_s": 0.0}, name, speedup, name, 1.0)
        for ((ranks, rtt_s), name), speedup in zip(FASTEST.items(), (1.5, 2.25, 1.0), strict=True)
    ]
    write_map(tmp_path, summary(AXES, points), "somewhere")
    drawn = (tmp_path / "fastest.svg").read_text()
    for text in (*FASTEST.values(), "1.50x", "2.25x", "0.5+0.2", "round trip of the link (s)"):
        assert f">{text}</text>" in drawn


def test_one_axis_is_no_map(tmp_path: Path) -> None:
    write_map(tmp_path, summary({"link.rtt_s": [0.01, 0.2], "link.jitter_s": [0.0]}, []), "somewhere")
    assert not list(tmp_path.iterdir())
