"""What a sweep varies, and how its values reach methods and deployments."""

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.spec import with_options
from specbench_kit.studies.sweep.axes import SweepAxis, parse_axes, points


def test_axes_are_read_and_what_varies_comes_first() -> None:
    axes = parse_axes(["link.jitter_s=0.01", "link.rtt_s=0.04,0.02", "fixed-k.k=1,2"], {})
    assert axes == [
        SweepAxis("link.rtt_s", (0.02, 0.04)),
        SweepAxis("fixed-k.k", (1, 2)),
        SweepAxis("link.jitter_s", (0.01,)),
    ]
    assert [axis.method for axis in axes] == [None, "fixed-k", None]


def test_without_any_the_deployments_proposal_is_taken() -> None:
    proposed = {"link.rtt_s": [0.1, 0.2]}
    assert parse_axes([], proposed) == [SweepAxis("link.rtt_s", (0.1, 0.2))]
    assert parse_axes(["link.seed=1"], proposed)[0].key == "link.rtt_s"
    assert [axis.key for axis in parse_axes(["fixed-k.k=1,2"], proposed)] == ["fixed-k.k"]


def test_only_numbers_are_points_on_a_line() -> None:
    assert SweepAxis("link.rtt_s", (2, 0.5)).numbers == [0.5, 2.0]
    assert SweepAxis("drafter.placement", ("server", "edge")).numbers == []
    assert SweepAxis("threshold.adaptive", (True, False)).numbers == []


def test_points_are_every_combination() -> None:
    grid = list(points([SweepAxis("fixed-k.k", (1, 2)), SweepAxis("link.rtt_s", (0.1, 0.2))]))
    assert [(point["link.rtt_s"], point["fixed-k.k"]) for point in grid] == [
        (0.1, 1),
        (0.1, 2),
        (0.2, 1),
        (0.2, 2),
    ]


def test_options_reach_only_their_method() -> None:
    values = {"fixed-k.k": 2, "link.rtt_s": 0.1}
    assert with_options("fixed-k", values) == "fixed-k:k=2"
    assert with_options("fixed-k:k=7", values) == "fixed-k:k=2"
    assert with_options("threshold:max_draft=8", values) == "threshold:max_draft=8"
    assert with_options("threshold:max_draft=8", {"threshold.adaptive": True}).endswith(
        "max_draft=8,adaptive=True"
    )


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (["link.rtt_s"], "--set needs a key and values"),
        (["link.rtt_s=1,,2"], "--set needs a key and values"),
        (["link.rtt_s=1,1.0"], "--set link.rtt_s: a value is given twice"),
        (["link.rtt_s=1,2", "link.rtt_s=3"], "a key is given twice"),
        (["link.rtt_s=1"], "nothing to sweep over"),
        ([], "nothing to sweep over"),
    ],
)
def test_axes_that_make_no_sweep(texts: list[str], line: str) -> None:
    with pytest.raises(SkitError, match=line):
        parse_axes(texts, {})
