"""A phase that is left and taken up again, on readings given by hand."""

import pytest
import torch

from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.decoding.timeline import Timeline


def test_a_resumed_phase_was_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent at 1 s, and the answer awaited from 4 to 6 s: once, for 5 s, of which 3 are the target's own."""
    readings = iter([0.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 6.0, 6.0])
    monkeypatch.setattr("specbench_kit.core.counted_time.perf_counter", lambda: next(readings))
    clock = MeasuringClock(torch.device("cpu"))
    with clock.running():
        with clock.phase("verify"):
            pass
        with clock.phase("draft"):
            pass
        with clock.resume("verify", asynchronous=True):
            pass
    assert dict(clock.take()) == {"verify": 1.0 + 2.0, "draft": 2.0}
    assert clock.typical_s("verify") == 6.0 - 1.0
    assert clock.typical_s("draft") == 2.0
    assert clock.typical_s("link") == 0.0


def test_a_phase_that_had_ended_has_no_rest() -> None:
    clock = MeasuringClock(torch.device("cpu"))
    with clock.running():
        with clock.phase("verify"):
            pass
        once_s, charged_s = clock.typical_s("verify"), clock.take()["verify"]
        with clock.resume("verify", asynchronous=False):
            pass
    assert (clock.typical_s("verify"), clock.take()["verify"]) == (once_s, 0.0)
    assert charged_s > 0


def test_what_is_drafted_beside_a_verification_is_proactive() -> None:
    clock = MeasuringClock(torch.device("cpu"))
    clock.timeline = Timeline()
    with clock.running():
        with clock.phase("draft"):
            pass
        with clock.overlap(), clock.phase("draft"):
            pass
        with clock.phase("draft"):
            pass
    assert [span.label for span in clock.timeline.spans] == ["draft", "proactive", "draft"]


def test_what_is_typical_is_the_median_of_the_last_fifteen(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [100.0, *range(1, 16)]
    readings = iter([0.0, *(at for length in lengths for at in (0.0, length)), 0.0, 0.0])
    monkeypatch.setattr("specbench_kit.core.counted_time.perf_counter", lambda: next(readings))
    clock = MeasuringClock(torch.device("cpu"))
    with clock.running():
        for _ in lengths:
            with clock.phase("draft"):
                pass
    assert clock.typical_s("draft") == 8.0
