"""Phases exclude each other, and time stands still outside `running`."""

from time import perf_counter, sleep

import pytest
import torch

from specbench_kit.decoding.clock import MeasuringClock, ModelledClock, ProcessorTime

CPU = torch.device("cpu")


def pass_time(seconds: float = 0.01) -> None:
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


def test_an_inner_phase_stops_the_outer_one() -> None:
    clock = MeasuringClock(CPU)
    with clock.running():
        with clock.phase("policy"):
            with clock.phase("draft"):
                pass_time(0.03)
            with clock.phase("prefill"):
                pass_time(0.01)
        pass_time(0.01)
        seconds, now_s = clock.take(), clock.now_s()
    assert set(seconds) == {"policy", "draft", "prefill"}
    assert seconds["draft"] >= 0.03
    assert seconds["prefill"] >= 0.01
    assert seconds["policy"] >= 0
    assert sum(seconds.values()) + 0.01 <= now_s


def test_the_time_between_two_readings_is_that_of_each_counter() -> None:
    earlier, later = ProcessorTime(10.0, 4.0, 7.0), ProcessorTime(13.0, 5.0, 12.0)
    assert later.since(earlier) == (3.0, 1.0, 5.0)
    assert earlier.plus(later.since(earlier)) == later


def test_taking_empties_the_phases() -> None:
    clock = MeasuringClock(CPU)
    with clock.running(), clock.phase("verify"):
        pass_time()
    assert clock.take()["verify"] > 0
    assert clock.take()["verify"] == 0


def test_time_stands_still_between_steps() -> None:
    clock = MeasuringClock(CPU, started_s=5.0)
    assert clock.now_s() == 5.0
    with clock.running():
        first = clock.now_s()
        pass_time()
        assert clock.now_s() > first >= 5.0
    stopped = clock.now_s()
    sleep(0.02)
    assert clock.now_s() == stopped
    with clock.running():
        assert clock.now_s() >= stopped
    assert clock.time_kind == "measured"


def test_what_is_not_typical_is_charged_and_guides_nobody() -> None:
    clock = MeasuringClock(CPU)
    with clock.running():
        with clock.phase("verify", typical=False):
            pass_time()
        with clock.resume("verify", asynchronous=True, typical=False):
            pass_time()
        assert clock.typical_s("verify") == 0
        with clock.phase("verify"):
            pass
        warm_s = clock.typical_s("verify")
        with clock.phase("verify", typical=False):
            pass_time()
    assert 0 < warm_s == clock.typical_s("verify") < 0.01
    assert clock.take()["verify"] >= 0.03
    modelled = ModelledClock()
    modelled.charge("verify", 9.0, typical=False)
    assert modelled.typical_s("verify") == 0
    modelled.charge("verify", 1.0)
    assert (modelled.typical_s("verify"), modelled.take()["verify"]) == (1.0, 10.0)


def test_an_error_closes_its_phase() -> None:
    clock = MeasuringClock(CPU)
    with (
        pytest.raises(ValueError, match="inside"),
        clock.running(),
        clock.phase("policy"),
        clock.phase("draft"),
    ):
        raise ValueError("inside")
    clock.take()
    with clock.running():
        pass_time()
        with clock.phase("verify"):
            pass
    assert set(clock.take()) == {"verify"}
    assert clock.now_s() >= 0.01


def test_modelled_time_passes_only_where_it_is_said() -> None:
    clock = ModelledClock(started_s=1.0)
    with clock.running(), clock.phase("draft"):
        pass_time()
        clock.charge("draft", 0.25)
        clock.charge("verify", 0.5)
        assert clock.now_s() == 1.0
        clock.wait_until(1.75)
        clock.wait_until(1.5)
    assert clock.now_s() == 1.75
    assert dict(clock.take()) == {"draft": 0.25, "verify": 0.5}
    assert clock.take()["draft"] == 0
    assert clock.time_kind == "modelled"
