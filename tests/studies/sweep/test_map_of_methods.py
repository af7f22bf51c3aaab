"""The figure of which method is the fastest where."""

from pathlib import Path

import pytest

from specbench_kit.reports.sweep.plots import write_map
from specbench_kit.studies.sweep.axes import SweepAxis

pytestmark = pytest.mark.figures

AXES = [
    SweepAxis("draft.ranks", ("0.5+0.2", "0.9")),
    SweepAxis("link.rtt_s", (0.01, 0.2)),
    SweepAxis("link.jitter_s", (0.0,)),
]
FASTEST = {("0.5+0.2", 0.01): "specinfer", ("0.9", 0.01): "fixed-k:k=4", ("0.9", 0.2): "autoregressive"}


def test_every_cell_says_who_is_fastest_and_how_fast(tmp_path: Path) -> None:
    points = [
        {"place": {"draft.ranks": ranks, "link.rtt_s": rtt_s, "link.jitter_s": 0.0}, "method": name, "speedup": speedup}
        for ((ranks, rtt_s), name), speedup in zip(FASTEST.items(), (1.5, 2.25, 1.0), strict=True)
    ]
    write_map(tmp_path, points, AXES, "somewhere")
    drawn = (tmp_path / "fastest.svg").read_text()
    for text in (*FASTEST.values(), "1.50x", "2.25x", "0.5+0.2", "round trip of the link (s)"):
        assert f">{text}</text>" in drawn


def test_one_axis_is_no_map(tmp_path: Path) -> None:
    write_map(tmp_path, [], AXES[1:], "somewhere")
    assert not list(tmp_path.iterdir())
