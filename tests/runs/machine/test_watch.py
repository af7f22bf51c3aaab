"""What is read of the machine while something is timed on it."""

import json
from pathlib import Path
from time import sleep

import pytest
import torch
from msgspec.structs import replace

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import MeasuringClock, ModelledClock, ProcessorTime
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.runs.machine.probe import (
    VARIABLE,
    InjectedProbe,
    LiveProbe,
    SystemCounters,
    probe_here,
)
from specbench_kit.runs.machine.watch import LaneTimes, Watch, same_steps, spread_of

CPU = torch.device("cpu")


class Counters(LiveProbe):
    """A machine whose counters are given, one pair per look."""

    def __init__(self, *looks: SystemCounters) -> None:
        self.looks = iter(looks)

    def system(self) -> SystemCounters:
        return next(self.looks)


def test_a_thread_that_is_kept_from_its_processor_is_seen_by_the_clock() -> None:
    clock = MeasuringClock(CPU)
    with clock.running():
        sleep(0.1)
    inside = clock.processor_time
    sleep(0.1)
    assert clock.processor_time == inside, "what happens outside is none of its time"
    assert inside.thread_s < 0.5 * inside.wall_s
    assert inside.wall_s >= clock.now_s() >= 0.1
    assert ModelledClock().processor_time is None


def test_shares_are_of_the_lane_and_of_the_time_that_processors_were_wanted() -> None:
    watch = Watch(Counters(SystemCounters(1.5, 10.0, 100.0), SystemCounters(4.0, 13.0, 160.0)), CPU)
    readings = watch.end(
        {
            "wisp": LaneTimes(ProcessorTime(20.0, 5.0, 9.0)),
            "pipe": LaneTimes(ProcessorTime(20.0, 5.0, 9.0), children_s=14.0),
        }
    )
    assert (readings.load, readings.steal) == ((1.5, 4.0), 3.0 / 60.0)
    assert (readings.lanes["wisp"].cpu_share, readings.lanes["pipe"].cpu_share) == (0.25, 0.95)
    assert (readings.lanes["wisp"].wall_s, readings.lanes["wisp"].process_s) == (20.0, 9.0)


def test_what_cannot_be_known_is_null() -> None:
    looks = SystemCounters(1.0, 10.0, 100.0), SystemCounters(1.0, 10.1, 100.9)
    readings = Watch(Counters(*looks), CPU).end(
        {
            "a": LaneTimes(ProcessorTime(0.0, 0.0, 0.0)),
            "b": LaneTimes(ProcessorTime(9, 1, 1), (), None),
        }
    )
    assert readings.steal is None
    assert [lane.cpu_share for lane in readings.lanes.values()] == [None, None]
    on_gpu = Watch(Counters(*looks), torch.device("cuda")).end(
        {"a": LaneTimes(ProcessorTime(9.0, 1.0, 1.0))}
    )
    assert on_gpu.lanes["a"].cpu_share is None


def test_spread_is_over_steps_of_one_kind() -> None:
    kinds = [[1.0] * 10, [5.0] * 10]
    assert spread_of(kinds) == (1.0, 20)
    assert spread_of([[1.0, 1.0, 1.0, 9.0]]) == (None, 0)
    spread, steps = spread_of([[1.0] * 8 + [2.0] * 2, [10.0] * 8 + [20.0] * 2])
    assert (spread, steps) == (2.0, 20)


def round_of(verify_s: float, end_s: float, submitted: int = 0) -> RoundRecord:
    return RoundRecord(submitted, submitted, 0, 1, 0, 0, 0, 0, 0, verify_s, 0, end_s)


def test_steps_are_the_same_by_batch_width_and_context_and_none_brings_a_prompt() -> None:
    rounds = [
        round_of(9.0, 9.0),
        round_of(0.5, 10.0),
        round_of(0.75, 11.0),
        round_of(0.6, 12.0, submitted=2),
    ]
    alone = RequestRecord("a", "", [0] * 4, e2e_s=12.0, finished_s=12.0, rounds=rounds)
    assert same_steps([alone]) == [[0.5, 0.75], [0.6]]
    batched = replace(
        alone, request_id="b", e2e_s=11.0, finished_s=11.0, rounds=[round_of(0.1, 10.0), rounds[2]]
    )
    assert same_steps([alone, batched]) == [[1.5], [0.6]]
    # It arrived a second later, so that its second round ended together with the other's.
    later = RequestRecord(
        "c", "", [0] * 4, e2e_s=10.0, finished_s=11.0, rounds=[round_of(9, 8.5), round_of(0.1, 9.0)]
    )
    assert same_steps([alone, later]) == [[0.6], [0.75], [0.6]]


def test_the_counters_of_this_machine_only_grow() -> None:
    before, after = LiveProbe().system(), LiveProbe().system()
    assert after.wanted_s >= before.wanted_s > 0
    assert after.stolen_s >= before.stolen_s >= 0
    assert before.stolen_s < before.wanted_s


def test_a_file_of_readings_stands_in_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "busy.json"
    path.write_text(json.dumps({"cpu_share": 0.5, "spread": None, "steal": 0.25, "load": 3}))
    monkeypatch.setenv(VARIABLE, str(path))
    readings = Watch(probe_here(), CPU).end({"wisp": LaneTimes(ProcessorTime(1.0, 1.0, 1.0))})
    assert (readings.injected, readings.steal, readings.load) == ("busy.json", 0.25, (3, 3))
    assert (readings.lanes["wisp"].cpu_share, readings.lanes["wisp"].spread) == (0.5, None)
    monkeypatch.delenv(VARIABLE)
    assert type(probe_here()) is LiveProbe


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"steal": 0}', '{"cpu_share": "1", "spread": 1, "steal": 0, "load": 0}']
)
def test_readings_that_are_none_are_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(SkitError, match=rf"{VARIABLE}.*bad\.json"):
        InjectedProbe.read(tmp_path / "bad.json")
