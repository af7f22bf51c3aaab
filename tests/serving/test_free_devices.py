"""Devices that draft without waiting: one takes the rounds of the replayed benchmark, many lose and double nothing."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from invariants import (
    no_request_is_in_two_batches,
    no_token_is_lost_or_doubled,
    time_never_runs_backwards,
)
from scenes import DEPLOYMENT, calm, scenario
from trace_builders import MAX_DRAFT, made_requests

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.base import SendsAhead
from specbench_kit.methods.spec import parse_method
from specbench_kit.runs.deployment import Link
from specbench_kit.serving.acceptance_spec import parse_acceptance, recorded_source
from specbench_kit.serving.arrivals import ClosedLoop, Poisson
from specbench_kit.serving.execution import DraftTime
from specbench_kit.serving.fleet import DeviceKind
from specbench_kit.serving.free_devices import FreeRuns, RightTokens
from specbench_kit.serving.memory import KvCapacity
from specbench_kit.serving.network import LinkTrace, Network
from specbench_kit.serving.round_sources import RecordedRounds, iid
from specbench_kit.serving.round_table import RoundRows
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import Simulation, simulate
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.studies.serving.serving_run import ServingRun
from specbench_kit.studies.serving.settings import ServingSettings
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import RequestTrace, TraceHeader

METHODS = ("decoupled:k=3,in_flight=2", "decoupled:k=2,in_flight=3", "decoupled:k=6,in_flight=1")
LINK_TRACE = LinkTrace(np.array([0.0, 1.0]), np.array([0.02, 0.03]))


def replayed(method: str, deployment: Deployment, traces: list[RequestTrace]) -> RecordedRounds:
    header = TraceHeader(MAX_DRAFT, 0.0, (), {})
    return RecordedRounds(list(replay(parse_method(method), header, traces, deployment=deployment)))


def source(method: str, deployment: Deployment = DEPLOYMENT, requests: int = 4) -> RightTokens:
    ahead, traces = parse_method(method).ahead, made_requests(requests)
    assert ahead is not None
    return RightTokens(traces, ahead, replayed(method, deployment, traces))


def free_scene(method: str = METHODS[0], devices: int = 12, **changes: object) -> Scenario:
    plain: dict[str, object] = {
        "prompt_tokens": None,
        "output_tokens": None,
        "slo": "1",
        "source": source(method),
        "duration_s": 20.0,
    }
    return scenario("wisp-cache", devices, **(plain | changes))


@pytest.mark.parametrize("rtt_s", [0.0, 0.02, 0.08])
@pytest.mark.parametrize("method", METHODS)
def test_one_device_takes_the_rounds_of_a_replayed_benchmark(method: str, rtt_s: float) -> None:
    """The same tokens at the same times: those of an answer are there when it arrives, whatever the device does."""
    deployment = calm()
    deployment = replace(deployment, link=replace(deployment.link, rtt_s=rtt_s))
    trace = made_requests(1)
    header = TraceHeader(MAX_DRAFT, 0.0, (), {})
    (record,) = replay(parse_method(method), header, trace, deployment=deployment)
    scene = free_scene(
        method,
        1,
        deployment=deployment,
        arrivals=ClosedLoop(ramp_s=0),
        source=source(method, deployment, 1),
    )
    rounds = simulate(scene).rounds
    count = len(record.rounds)
    for name in ("submitted", "accepted", "committed"):
        assert rounds[name][:count].tolist() == [getattr(step, name) for step in record.rounds], (
            name
        )
    assert (rounds["submitted"][:count].max() > 0) == (
        rtt_s < 0.05
    )  # short drafts are never in time over a long link
    assert np.allclose(
        rounds["answered_s"][:count], [step.end_s for step in record.rounds], rtol=1e-9
    )


def test_a_device_that_is_slower_than_the_server_begins_anew_from_what_it_has_read() -> None:
    """Its draft model reads the tokens that the server wrote meanwhile, and no others again."""
    slow = replace(calm().drafter, latency=InteractionModel(0.002, 0, 0, 0.07))
    deployment = replace(calm(), drafter=slow, link=replace(calm().link, rtt_s=0.001))
    trace = made_requests(1)
    (record,) = replay(
        parse_method(METHODS[1]), TraceHeader(MAX_DRAFT, 0.0, (), {}), trace, deployment=deployment
    )
    own = source(METHODS[1], deployment, 1)
    rounds = simulate(
        free_scene(METHODS[1], 1, deployment=deployment, arrivals=ClosedLoop(ramp_s=0), source=own)
    ).rounds
    count = len(record.rounds) - 1
    assert rounds["committed"][:count].tolist() == [step.committed for step in record.rounds[:-1]]
    assert sum(rounds["drafted"][: count + 1]) == pytest.approx(
        sum(step.drafted for step in record.rounds), abs=1
    )
    drafted_s = sum(step.draft_s for step in record.rounds)
    assert sum(rounds["draft_s"][: count + 1]) == pytest.approx(drafted_s, abs=0.1)


def one_round() -> RoundRows:
    """Return a round of which every field is 0."""
    return RoundRows(np.zeros((1, len(RoundRows.FIELDS))))


class OneDevice:
    """The rounds of a device with a prompt of ten tokens."""

    fleet = SimpleNamespace(kind=np.array([0]))

    def __init__(self, deployment: Deployment) -> None:
        self.draft_times = [DraftTime(deployment)]
        self.submitted: list[int] = []

    def current(self, _: np.ndarray) -> RoundRows:
        rows = one_round()
        rows.prompt[:] = 10
        return rows

    def place(self, _: int) -> int:
        return 0

    def submit(self, _: np.ndarray, tokens: np.ndarray) -> None:
        self.submitted += tokens.tolist()


def test_a_device_that_was_overtaken_reads_what_it_did_not_draft_by_itself() -> None:
    """It reads or drafts a token per second, four of them until 13 s; at 11.5 s the server has six.

    The forward that is under way ends at 12 s. The draft model has then read the prompt and two tokens, and has only
    said the third: four are to be read until 16 s, and a chunk of two is at the server at 17 s.
    """
    per_token = replace(DEPLOYMENT.drafter, latency=InteractionModel(1.0, 0, 0, 0))
    deployment = replace(DEPLOYMENT, drafter=per_token, link=Link())
    scene: Any = SimpleNamespace(kinds=[SimpleNamespace(deployment=deployment)], devices=1)
    right: Any = SimpleNamespace(ahead=SendsAhead(2, 2), right_from=lambda _: 100)
    table: Any = OneDevice(deployment)
    runs, device = FreeRuns(scene, [right], table), np.array([0])
    runs.begin(device, np.array([0.0]))
    assert [runs.take_arrived(0, now_s) for now_s in (10.9, 11.0, 12.0)] == [0, 2, 0]
    rows = one_round()
    rows.context[:], rows.committed[:] = 10, 6
    runs.answer(device, rows, np.array([11.5]), np.array([11.5]))
    assert (rows.drafted.tolist(), rows.draft_s.tolist()) == ([3], [3.0])
    assert [runs.take_arrived(0, now_s) for now_s in (16.9, 17.0, 18.0)] == [0, 2, 0]
    assert table.submitted == [2, 2]


def test_answers_follow_each_other_and_each_is_drawn_as_often() -> None:
    """Tokens 1 and 5 of two answers of three tokens are wrong; behind the last token the first answer comes again."""
    traces = [
        replace(trace, output_ids=[1, 2, 3], drafted=np.array([[1], [2], [3]]))
        for trace in made_requests(2)
    ]
    traces[0].drafted[1, 0] = traces[1].drafted[2, 0] = 9
    traces[1] = replace(traces[1], prompt_ids=[5] * 7)
    ahead = parse_method(METHODS[0]).ahead
    assert ahead is not None
    answers = RightTokens(traces, ahead, replayed(METHODS[0], DEPLOYMENT, made_requests(2)))
    assert [answers.right_from(place) for place in range(8)] == [1, 0, 3, 2, 1, 0, 1, 0]
    starts = answers.begin(np.array([0.0, 0.49, 0.5, 0.99]))
    assert starts.cursor.tolist() == [0, 0, 3, 3]
    assert starts.prompt_tokens.tolist() == [len(traces[0].prompt_ids)] * 2 + [7] * 2
    assert starts.output_tokens.tolist() == [3] * 4


@pytest.mark.parametrize(
    "memory", [KvCapacity(), KvCapacity(700, 4096), KvCapacity(700, 4096, lru=True)]
)
@pytest.mark.parametrize("servers", [1, 2])
def test_what_holds_among_many_devices(servers: int, memory: KvCapacity) -> None:
    result = simulate(
        free_scene(arrivals=Poisson(4.0), servers=servers, memory=memory, max_batch=6), seed=2
    )
    assert len(result.responses["client"]) > 40
    no_token_is_lost_or_doubled(result)
    no_request_is_in_two_batches(result)
    if servers == 1:  # the batches of several overlap
        time_never_runs_backwards(result)
    assert result.rounds["accepted"].sum() > 0


def test_a_server_never_waits_for_devices() -> None:
    """Every round but the first of a response is at the server when the one before it ends."""
    rounds = simulate(free_scene(devices=3)).rounds
    goes_on = 0
    for client in np.unique(rounds["client"]):
        mine = {name: column[rounds["client"] == client] for name, column in rounds.items()}
        same = np.diff(mine["response"]) == 0
        assert (mine["arrived_s"][1:] == mine["ended_s"][:-1])[same].all()
        goes_on += int(same.sum())
    assert goes_on > 100


def test_drafts_that_are_always_wrong_cost_a_server_nothing() -> None:
    """Tokens come as fast as from plain decoding, but for the draft that is verified now and then."""
    traces = made_requests(4)
    wrong = [
        replace(trace, drafted=np.where(trace.drafted >= 0, trace.drafted + 1, trace.drafted))
        for trace in traces
    ]
    ahead = parse_method(METHODS[0]).ahead
    assert ahead is not None
    hopeless = RightTokens(wrong, ahead, replayed(METHODS[0], DEPLOYMENT, traces))
    free = simulate(free_scene(devices=1, source=hopeless, arrivals=ClosedLoop(ramp_s=0)))
    scene = free_scene(devices=1, arrivals=ClosedLoop(ramp_s=0))
    alone = simulate(replace(scene, source=iid(0.0, 0), prompt_tokens=100, output_tokens=40))
    assert free.rounds["committed"].max() == 1
    free_s, alone_s = (np.diff(result.rounds["ended_s"][1:10]).mean() for result in (free, alone))
    assert free_s < 1.3 * alone_s


def test_a_run_that_is_looked_at_goes_on_as_if_it_had_not_been() -> None:
    looked_at = Simulation(free_scene(), 3)
    looked_at.run(7.0)
    whole = Simulation(free_scene(), 3)
    for name, column in looked_at.run(20.0).rounds.items():
        assert np.array_equal(column, whole.run(20.0).rounds[name]), name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"system": "adaspec"}, "drafts on devices, and this system on the server"),
        (
            {"network": Network(trace=LINK_TRACE)},
            "leave out the trace of the link",
        ),
        ({"fleet": "mixed"}, "with devices that all do so"),
    ],
)
def test_scenes_that_such_devices_cannot_be_in_are_refused(
    changes: dict[str, object], words: str
) -> None:
    scene = free_scene()
    changes = dict(changes)
    if changes.get("fleet"):
        kinds = (
            DeviceKind("a", 0.5, DEPLOYMENT, scene.source),
            DeviceKind("b", 0.5, DEPLOYMENT, iid(0.5, 3)),
        )
        changes = {"fleet": kinds}
    if system := changes.pop("system", None):
        scene = scenario(
            str(system), 3, source=scene.source, slo="1", prompt_tokens=None, output_tokens=None
        )
    with pytest.raises(SkitError, match=words):
        simulate(replace(scene, **changes))  # type: ignore[arg-type]


def test_rounds_that_do_not_depend_on_the_server_are_refused() -> None:
    """Rates say how long drafts are, and a run how long they were, however busy the server is."""
    with pytest.raises(
        SkitError, match="depend on how busy the server is: name a trace as --acceptance"
    ):
        parse_acceptance("iid:alpha=0.8", METHODS[0], DEPLOYMENT)
    with pytest.raises(
        SkitError, match="depend on how busy the server is: name a trace as --acceptance"
    ):
        recorded_source([], parse_method(METHODS[0]), DEPLOYMENT)


def test_a_system_that_drafts_on_its_server_is_refused_before_anything_is_recorded(
    tmp_path: Path,
) -> None:
    settings = ServingSettings(
        recording=RecordingSettings(),
        method=(METHODS[0],),
        system=("adaspec",),
        prompt_tokens="60",
        output_tokens="20",
        out=tmp_path,
    )
    with pytest.raises(SkitError, match="the method drafts while the target verifies"):
        ServingRun(settings=settings, report=lambda *_: None).simulate()
    assert not list(tmp_path.iterdir())
