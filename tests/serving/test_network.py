"""Recorded links, shared uplinks and the overhead of the server."""

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from scenes import DEPLOYMENT, calm, scenario

from specbench_kit.core.errors import SkitError
from specbench_kit.runs.deployment import Link
from specbench_kit.serving.devices import LinkDelays, SharedUplink
from specbench_kit.serving.link_traces import read_link_trace
from specbench_kit.serving.metrics import compute_metrics
from specbench_kit.serving.network import LinkTrace, Network
from specbench_kit.serving.round_table import RoundTable
from specbench_kit.serving.simulation import simulate


def trace(rtt_s: list[float], bytes_per_s: list[float]) -> LinkTrace:
    return LinkTrace(np.arange(len(rtt_s), dtype=float), np.array(rtt_s), np.array(bytes_per_s))


def test_messages_cross_at_the_rate_of_the_moment_and_wait_where_there_is_none() -> None:
    link = trace([0.2, 0.4, 0.6], [100.0, 0.0, 50.0])
    sizes, times = np.array([50.0, 100.0, 100.0, 0.0, 300.0]), np.array([0.0, 0.5, 2.0, 1.5, 0.0])
    # 50 bytes at once; 50 more of 100 behind the gap; 50 in the last second and 50 in the next pass; two passes.
    expected = [0.1 + 0.5, 0.1 + 2.5, 0.3 + 1.5, 0.2 + 0.5, 0.1 + 6.0]
    assert link.transfer_s(sizes, times) == pytest.approx(expected)
    assert (link.mean_rtt_s, link.mean_bytes_per_s) == (pytest.approx(0.4), 50.0)


def test_a_shared_link_serves_one_after_the_other_in_the_order_of_arrival() -> None:
    link = SharedUplink(4)
    moved, through_s = link.send(np.array([0, 1]), np.array([5.0, 1.0]), np.array([2.0, 3.0]))
    assert dict(zip(moved.tolist(), through_s.tolist(), strict=True)) == {1: 4.0, 0: 7.0}
    moved, through_s = link.send(np.array([2, 3]), np.array([3.5, inf]), np.array([2.0, 1.0]))
    assert dict(zip(moved.tolist(), through_s.tolist(), strict=True)) == {2: 6.0, 0: 8.0, 3: inf}


def test_a_recording_that_never_changes_is_a_link() -> None:
    recording = Network(trace([0.02, 0.02], [1e5, 1e5]))
    steady = replace(DEPLOYMENT, link=Link(rtt_s=0.02, up_bytes_per_s=1e5, down_bytes_per_s=1e5))
    scene = scenario(devices=1, duration_s=12.0, deployment=steady)
    plain, recorded = (simulate(variant) for variant in (scene, replace(scene, network=recording)))
    for name in ("arrived_s", "answered_s", "deadline_s"):
        assert recorded.rounds[name] == pytest.approx(plain.rounds[name], rel=1e-6, abs=1e-6)


def test_drafts_that_share_an_uplink_cross_it_one_by_one_and_late() -> None:
    scene = scenario(deployment=calm(), duration_s=12.0)
    alone, shared = (
        simulate(scene),
        simulate(replace(scene, network=Network(shared_up_bytes_per_s=1000.0))),
    )
    rounds, order = shared.rounds, np.argsort(shared.rounds["arrived_s"])
    takes_s = (
        4 * rounds["submitted"] / 1000.0 * (rounds["cached"] > 0)
    )  # of drafts without a prompt
    assert (np.diff(rounds["arrived_s"][order]) >= takes_s[order][1:] - 1e-9).all()
    missed = [
        compute_metrics(scene, result).overall.deadline_miss_rate for result in (alone, shared)
    ]
    assert missed[0] < missed[1]


def test_a_server_reads_and_writes_one_message_after_the_other() -> None:
    table = RoundTable(scenario(devices=3), 0)
    delays, rows = (
        LinkDelays(Network(frame_s=0.5), table.fleet, on_edge=True),
        table.current(np.arange(3)),
    )
    moved, arrives_s = delays.uplink_arrivals(
        np.arange(3), rows, np.array([2.0, 1.0, 9.0]) - rows.up_s
    )
    assert dict(zip(moved.tolist(), arrives_s.tolist(), strict=True)) == pytest.approx(
        {1: 1.5, 0: 2.5, 2: 9.5}
    )
    assert delays.downlink_excess_s(
        np.array([2, 0]), table.current(np.array([2, 0])), 20.0
    ).tolist() == [0.5, 1.0]


def test_a_server_takes_a_while_from_one_verification_to_the_next() -> None:
    """A waiting round starts right after that gap; answers leave as before."""
    scene = replace(
        scenario(devices=12, duration_s=8.0), network=Network(turn_s=0.01, turn_answer_s=0.002)
    )
    result = simulate(scene)
    batches, rounds = result.batches, result.rounds
    free_s = batches["ended_s"][:-1] + 0.01 + 0.002 * batches["size"][:-1]
    assert (batches["started_s"][1:] >= free_s - 1e-9).all()
    first = [
        rounds["arrived_s"][rounds["batch"] == number].min() for number in range(1, len(free_s) + 1)
    ]
    waits = batches["left_waiting"][:-1] > 0
    waits |= np.array(first) <= free_s
    assert waits.sum() > 5
    assert batches["started_s"][1:][waits] == pytest.approx(free_s[waits])


def test_answers_that_still_leave_hold_up_the_next_verification() -> None:
    """The isolated seconds include one answer per request; a verification with fewer answers before it is shorter."""
    network = Network(frame_s=0.004, answer_s=0.0005)
    batches = simulate(replace(scenario(devices=12, duration_s=8.0), network=network)).batches
    gaps_s = batches["started_s"][1:] - batches["ended_s"][:-1]
    answers_leaving = np.ceil(np.maximum(0.0, batches["size"][:-1] - gaps_s / 0.004))
    more_s = (
        (batches["ended_s"] - batches["started_s"]) - (batches["expected_s"] - batches["started_s"])
    )[1:]
    assert more_s == pytest.approx(0.0005 * (answers_leaving - batches["size"][1:]), abs=1e-9)
    assert answers_leaving.min() == 0
    assert answers_leaving.max() > 1


def test_verifications_scatter_around_what_they_take() -> None:
    scene = scenario(devices=4, duration_s=60.0)
    batches = simulate(replace(scene, verify_cv=0.3)).batches
    share = (batches["ended_s"] - batches["started_s"]) / (
        batches["expected_s"] - batches["started_s"]
    )
    assert share.mean() == pytest.approx(1.0, abs=4 * 0.3 / np.sqrt(len(share)))
    assert share.std() == pytest.approx(0.3, rel=0.15)
    with pytest.raises(SkitError, match="--verify-cv takes a share from 0 on, not -1"):
        replace(scene, verify_cv=-1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "time_s,jitter_s\n0,5\n",
            r"links\.csv has the columns time_s, jitter_s: name each once, as rtt_s or rtt_ms",
        ),
        (
            "time_s,rtt_s,rtt_ms\n0,5,5000\n",
            r"links\.csv has the columns time_s, rtt_s, rtt_ms: name each once",
        ),
        ("time_s,rtt_s\n0,0.1\n1\n", r"links\.csv:3: not a row with time_s, rtt_s"),
        ("0.1\nslow\n", r"links\.csv:2: not a row with rtt_s"),
        ("0.1\n-0.1\n", r"links\.csv:2: rtt_s must be numbers from 0 up"),
        ("time_s,rtt_s,bytes_per_s\n0,-1,5\n", r"links\.csv:2: .* must be numbers from 0 up"),
        ("time_s,rtt_s,bytes_per_s\n1,0.1,5\n1,0.1,5\n", "times must rise"),
        ("time_s,rtt_s,bytes_per_s\n", "holds no row"),
    ],
)
def test_a_bad_recording_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "links.csv"
    path.write_text(text)
    with pytest.raises(SkitError, match=message):
        read_link_trace(path)


@pytest.mark.parametrize(
    ("name", "text", "times"),
    [
        ("pings.txt", "0.03\n0.05\n0.1\n", [0, 1, 2]),
        ("pings.csv", "rtt_s\n0.03\n0.05\n0.1\n", [0, 1, 2]),
        ("pings.csv", "5,0.03\n6,0.05\n9,0.1\n", [5, 6, 9]),
        ("pings.csv", "rtt_s,time_s\n0.03,5\n0.05,6\n0.1,9\n", [5, 6, 9]),
        ("pings.jsonl", '{"rtt_s": 0.03}\n{"rtt_s": 0.05}\n{"rtt_s": 0.1}\n', [0, 1, 2]),
    ],
)
def test_a_recording_may_be_of_round_trips_alone(
    tmp_path: Path, name: str, text: str, times: list[float]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    recorded = read_link_trace(path)
    assert recorded.rtt_s.tolist() == [0.03, 0.05, 0.1]
    assert recorded.time_s.tolist() == times
    assert recorded.bytes_per_s is None


def test_round_trips_alone_leave_the_bytes_to_the_devices_own_links() -> None:
    """A round trip that never changes is the link itself; else a message takes half of it."""
    steady = replace(DEPLOYMENT, link=replace(DEPLOYMENT.link, jitter_s=0.0))
    scene = scenario(devices=3, duration_s=12.0, deployment=steady)
    rtt_s = steady.link.rtt_s
    constant = Network(LinkTrace(np.arange(3.0), np.full(3, rtt_s)))
    plain, recorded = (simulate(variant) for variant in (scene, replace(scene, network=constant)))
    for name in ("arrived_s", "answered_s", "deadline_s"):
        assert recorded.rounds[name] == pytest.approx(plain.rounds[name], rel=1e-9, abs=1e-9)
    varying = LinkTrace(np.arange(2.0), np.array([0.02, 0.08]))
    assert varying.excess_s(np.array([10.0, 1e6]), np.array([0.5, 1.5])) == pytest.approx(
        [-0.015, 0.015]
    )
    link = Network(varying).link(steady.link)
    assert link == replace(steady.link, rtt_s=0.05)


def test_rows_may_be_json(tmp_path: Path) -> None:
    path = tmp_path / "links.jsonl"
    path.write_text(
        '{"time_s": 10, "rtt_s": 0.1, "bytes_per_s": 5}\n\n{"time_s": 12, "rtt_s": 0.3, "bytes_per_s": 15}\n'
    )
    assert read_link_trace(path).mean_bytes_per_s == 10
