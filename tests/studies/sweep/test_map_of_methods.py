"""The figure of which method is the fastest where."""

import pytest

from specbench_kit.deployments.fields import Value
from specbench_kit.reports.writing.drawing import draw
from specbench_kit.studies.sweep.plots import map_of_methods
from specbench_kit.studies.sweep.summary import FastestMethod, SweepSummary

pytestmark = pytest.mark.figures

FASTEST = {
    ("0.5+0.2", 0.01): "specinfer",
    ("0.9", 0.01): "fixed-k:k=4",
    ("0.9", 0.2): "autoregressive",
}
AXES: dict[str, list[Value]] = {
    "draft.ranks": ["0.5+0.2", "0.9"],
    "link.rtt_s": [0.01, 0.2],
    "link.jitter_s": [0.0],
}


def summary(axes: dict[str, list[Value]], fastest: list[FastestMethod]) -> SweepSummary:
    return SweepSummary(axes, [], [], fastest, [])


def test_every_cell_says_who_is_fastest_and_how_fast() -> None:
    points = [
        FastestMethod(
            {"draft.ranks": ranks, "link.rtt_s": rtt_s, "link.jitter_s": 0.0},
            name,
            speedup,
            name,
            1.0,
        )
        for ((ranks, rtt_s), name), speedup in zip(FASTEST.items(), (1.5, 2.25, 1.0), strict=True)
    ]
    picture = map_of_methods(summary(AXES, points))
    assert picture is not None
    drawn = draw(picture, "somewhere", ("svg",))["svg"].decode()
    for text in (*FASTEST.values(), "1.50x", "2.25x", "0.5+0.2", "round trip of the link (s)"):
        assert f">{text}</text>" in drawn


def test_one_axis_is_no_map() -> None:
    assert map_of_methods(summary({"link.rtt_s": [0.01, 0.2], "link.jitter_s": [0.0]}, [])) is None
