"""Break-even points: where the times of a method and of its rival cross between two points of the grid."""

from pathlib import Path

import pytest
from trace_builders import made_requests, write_trace

from specbench_kit.studies.sweep.report import Crossing, SweepSummary
from specbench_kit.studies.sweep.run import break_even, run_sweep
from specbench_kit.studies.sweep.settings import SweepSettings


def test_a_method_that_stops_paying_for_itself() -> None:
    # It takes 8 and 12 s where its rival takes 10.
    verdict, (crossing,) = break_even([0.01, 0.02, 0.04], [2, 10 / 8, 10 / 12], [5, 8, 12])
    assert verdict == "in part"
    assert (crossing.low, crossing.high, crossing.stops) == (0.02, 0.04, True)
    assert crossing.at == pytest.approx(0.03)


def test_a_method_that_starts_to_pay_for_itself() -> None:
    _, (crossing,) = break_even([1, 2, 4], [10 / 15, 10 / 5, 10 / 4], [15, 5, 4])
    assert (crossing.at, crossing.stops) == (pytest.approx(1.5), False)


def test_the_rival_may_take_longer_with_the_axis_too() -> None:
    # 4 + 3 r against 10 + r: equal at 3.
    own_s, rival_s = [4 + 3 * r for r in (0, 5)], [10 + r for r in (0, 5)]
    speedups = [rival / own for rival, own in zip(rival_s, own_s, strict=True)]
    _, (crossing,) = break_even([0, 5], speedups, own_s)
    assert crossing.at == pytest.approx(3)


def test_without_seconds_the_inverse_of_the_speedup_is_interpolated() -> None:
    _, (crossing,) = break_even([0, 1], [2, 0.5])  # 5 and 20 s where the rival takes 10
    assert crossing.at == pytest.approx(1 / 3)


def test_the_order_of_the_points_does_not_matter() -> None:
    assert break_even([4, 1, 2], [0.5, 2, 1.5], [8, 2, 3]) == break_even(
        [1, 2, 4], [2, 1.5, 0.5], [2, 3, 8]
    )


def test_faster_or_slower_throughout() -> None:
    assert break_even([1, 2], [1.1, 1.01]) == ("everywhere", [])
    assert break_even([1, 2], [0.9, 0.2]) == ("nowhere", [])
    assert break_even([1], [2.0]) == ("everywhere", [])


def test_a_speedup_of_one_beats_nothing() -> None:
    assert break_even([1, 2], [1.0, 1.0]) == ("nowhere", [])
    assert break_even([1, 2], [1.5, 1.0]) == ("in part", [Crossing(1, 2, 2, True)])


def test_a_line_may_pass_one_several_times() -> None:
    _, crossings = break_even([1, 2, 3], [0.5, 2, 0.5])
    assert [crossing.stops for crossing in crossings] == [False, True]
    assert [crossing.at for crossing in crossings] == pytest.approx([1 + 2 / 3, 2 + 1 / 3])


def test_a_coarse_grid_finds_what_a_fine_one_finds(tmp_path: Path) -> None:
    """The times of fixed lengths are straight lines in the round trip, so that two points of a grid are enough."""
    trace = tmp_path / "made.parquet"
    write_trace(trace, made_requests(10))

    def swept(*round_trips_s: float) -> SweepSummary:
        settings = SweepSettings(
            trace=trace,
            deployment="wan",
            replaced=("link.jitter_s=0", f"link.rtt_s={','.join(map(str, round_trips_s))}"),
            methods=("fixed-k:k=4",),
            out=tmp_path,
        )
        return run_sweep(settings, None, lambda *_: None).result

    (coarse,) = swept(0.001, 2.0).break_even
    (crossing,) = coarse.crossings
    around = (crossing.at * (1 - 1e-6), crossing.at * (1 + 1e-6))
    (fine,) = swept(*around).break_even
    assert fine.verdict == "in part"
    assert fine.crossings[0].stops
