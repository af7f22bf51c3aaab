"""The event loop: invariants of every system and scheduler, and closed forms."""

from dataclasses import replace
from itertools import product
from math import inf, isclose

import numpy as np
import pytest
from invariants import (
    no_request_is_in_two_batches,
    no_token_is_lost_or_doubled,
    time_never_runs_backwards,
)
from nightly import nightly_except
from scenes import DRAFT, VERIFY, calm, equal_results, scenario
from trace_builders import MAX_DRAFT, made_requests

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import ContextModel, InteractionModel
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.spec import parse_method
from specbench_kit.predictors.library import PairHashes
from specbench_kit.runs.deployment import TOKEN_BYTES
from specbench_kit.serving.arrivals import ClosedLoop, Poisson, ReplayedArrivals, RequestArrival
from specbench_kit.serving.memory import KvCapacity
from specbench_kit.serving.metrics import compute_metrics
from specbench_kit.serving.parallel import Workers, simulate_and_measure
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.round_sources import RecordedRounds, iid
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import Simulation, simulate
from specbench_kit.serving.systems.base import systems
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import TraceHeader

SYSTEMS = list(systems.all())
TIGHT = KvCapacity(700, 4096)
"""Room for six of the scenes' sessions."""
WORK_CONSERVING = (
    "fcfs",
    "edf",
    "wisp-promise",
    "wisp-paper:late_lane=true",
    "knapsack:window=6",
    "prefill-first",
)


def replayed(method: str, deployment: Deployment, requests: int = 4) -> list[RequestRecord]:
    header = TraceHeader(MAX_DRAFT, 0.0, (), {})
    return list(
        replay(parse_method(method), header, made_requests(requests), deployment=deployment)
    )


@pytest.mark.parametrize(
    ("system", "memory"),
    nightly_except(
        [("centralized", KvCapacity()), *((system, TIGHT) for system in SYSTEMS)],
        product(SYSTEMS, (KvCapacity(), TIGHT)),
    ),
)
def test_what_holds_in_every_system(system: str, memory: KvCapacity) -> None:
    scene = scenario(system, memory=memory)
    result = simulate(scene, seed=3)
    assert len(result.responses["client"]) > scene.devices
    no_token_is_lost_or_doubled(result)
    no_request_is_in_two_batches(result)
    time_never_runs_backwards(result)
    assert 0 < result.peak_kv_tokens <= memory.tokens
    assert (result.evictions > 0) == (memory is TIGHT and scene.system.prefix_cache)


SEEDS = nightly_except([1], range(4))
"""Four sizes of a fleet."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scheduler", [*WORK_CONSERVING, "static:size=5,timeout_s=0.05"])
def test_what_holds_under_every_scheduler(scheduler: str, seed: int) -> None:
    scene = scenario(devices=9 + 7 * seed, scheduler=scheduler, memory=TIGHT, max_batch=6)
    result = simulate(scene, seed)
    no_token_is_lost_or_doubled(result)
    no_request_is_in_two_batches(result)
    time_never_runs_backwards(result)
    assert result.peak_kv_tokens <= TIGHT.tokens
    assert result.batches["size"].max() <= 6


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scheduler", WORK_CONSERVING)
def test_the_server_works_as_long_as_it_has_work(scheduler: str, seed: int) -> None:
    """Memory has room for all; without it, sessions are blocked until others are done."""
    result = simulate(scenario(devices=9 + 7 * seed, scheduler=scheduler, max_batch=6), seed)
    assert (result.refusals, result.idle_waiting_s) == (0, 0.0)
    the_server_never_idles_while_a_round_waits(result)


def the_server_never_idles_while_a_round_waits(result: SimulationResult) -> None:
    started_s, ended_s = result.batches["started_s"], result.batches["ended_s"]
    for free_s, busy_s in zip(ended_s[:-1], started_s[1:], strict=True):
        if free_s < busy_s:
            waits = (result.rounds["arrived_s"] < busy_s) & (result.rounds["started_s"] > free_s)
            assert not waits.any()


def test_one_device_alone_takes_the_closed_form() -> None:
    """Every draft is fully accepted: each round drafts 3 tokens behind the one that the draft model lacks."""
    deployment = calm()
    scene = scenario(
        "wisp-cache",
        1,
        deployment=deployment,
        source=iid(1.0, 3),
        slo="1",
        output_tokens=12,
        arrivals=ClosedLoop(ramp_s=0),
    )
    result = simulate(scene)
    link, prompt, expected_s = deployment.link, 60, 0.0
    for number in range(3):
        context, cached = prompt + 4 * number, 0 if number == 0 else prompt + 4 * number - 1
        lacking = 1 if number == 0 else 2
        expected_s += DRAFT.seconds([(prompt - 1, 0)]) if number == 0 else 0.0
        expected_s += DRAFT.seconds([(lacking, context - lacking)])
        expected_s += sum(DRAFT.seconds([(1, context + step)]) for step in range(2))
        sent = 3 + (prompt if number == 0 else 0)
        expected_s += (
            link.rtt_s
            + sent * TOKEN_BYTES / link.up_bytes_per_s
            + 4 * TOKEN_BYTES / link.down_bytes_per_s
        )
        expected_s += VERIFY.seconds([(context + 3 - cached, cached)])
    assert isclose(result.responses["end_s"][0], expected_s, rel_tol=1e-12)
    assert result.rounds["submitted"][:3].tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    "method",
    [
        "fixed-k:k=1", "fixed-k:k=3", "threshold:threshold=0.6,max_draft=5", "pearl:k=3", "pearl:k=3,pre_verify=false"
    ],
)  # fmt: skip
def test_one_device_takes_the_time_of_a_replayed_benchmark(method: str) -> None:
    """A trace has the rounds of `skit bench --replay` on the same deployment."""
    deployment = calm()
    records = replayed(method, deployment, 1)
    scene = scenario(
        "wisp-cache", 1, deployment=deployment, source=RecordedRounds(records), slo="1",
        prompt_tokens=None, output_tokens=None, arrivals=ClosedLoop(ramp_s=0),
    )  # fmt: skip
    result = simulate(scene)
    rounds = len(records[0].rounds)
    assert result.rounds["committed"][:rounds].tolist() == [
        step.committed for step in records[0].rounds
    ]
    answered_s, expected_s = (
        result.rounds["answered_s"][:rounds],
        [step.end_s for step in records[0].rounds],
    )
    assert answered_s[0] == pytest.approx(expected_s[0], rel=1e-12), (
        "tokens are there when their answer arrives"
    )
    if any(step.proactive for step in records[0].rounds):
        # A forward ahead of the first answer begins with the wait here, and in the engine behind the prompt. All later
        # rounds take the same time but for the context of such forwards.
        assert answered_s[1] == pytest.approx(expected_s[1], abs=DRAFT.seconds([(1, 200)]))
        assert np.allclose(np.diff(answered_s[1:]), np.diff(expected_s[1:]), rtol=2e-3)
    else:
        assert np.allclose(answered_s, expected_s, rtol=1e-12)


@pytest.mark.nightly  # 24 s; the other tests simulate the same arrivals and waits
@pytest.mark.slow
def test_random_arrivals_at_a_constant_server_wait_as_md1_says() -> None:
    """Responses of one token, one at a time, wait for utilisation / (1 - utilisation) * service / 2 on average."""
    service_s, utilisation = 0.02, 0.5
    deployment = Deployment(
        "md1", Endpoint("none", DRAFT), Endpoint("server", InteractionModel(0, 0, 0, service_s))
    )
    waits_s = []
    for seed in range(2):
        scene = Scenario(
            deployment, systems.get("centralized"), iid(0, 0), devices=400, scheduler="fcfs", max_batch=1,
            arrivals=Poisson(utilisation / service_s), prompt_tokens=1, output_tokens=1, duration_s=2000, warmup_s=50,
        )  # fmt: skip
        rounds = simulate(scene, seed).rounds
        settled = np.isfinite(rounds["ended_s"]) & (rounds["arrived_s"] >= 50)
        waits_s.append((rounds["started_s"] - rounds["arrived_s"])[settled].mean())
    theory_s = utilisation / (1 - utilisation) * service_s / 2
    assert np.mean(waits_s) == pytest.approx(theory_s, rel=0.02)


def test_a_seed_gives_the_same_run_in_any_number_of_processes() -> None:
    work = [(scenario(devices=8, duration_s=10.0, warmup_s=1.0), seed) for seed in range(4)]
    work = [(*scene_and_seed, keep) for scene_and_seed in work]
    alone, together = (list(Workers(jobs).map(simulate_and_measure, work)) for jobs in (1, 2))
    assert all(equal_results(first, second) for first, second in zip(alone, together, strict=True))
    assert not equal_results(alone[0], alone[1])


@pytest.mark.parametrize(
    "system", nightly_except(["wisp", "sled"], ["wisp", "sled", "centralized", "adaspec"])
)
def test_a_run_that_is_looked_at_goes_on_as_if_it_had_not_been(system: str) -> None:
    """The state at each pause is that of a run that ends there."""
    looked_at = Simulation(scenario(system, memory=TIGHT, arrivals=Poisson(2.0)), 4)
    for end_s in (1.0, 7.3, 12.0, 40.0):
        short = scenario(
            system, memory=TIGHT, arrivals=Poisson(2.0), duration_s=end_s, warmup_s=0.0
        )
        assert equal_results(looked_at.run(end_s), simulate(short, 4))


def keep(_scene: Scenario, result: SimulationResult) -> SimulationResult:
    return result


def test_paired_seeds_give_every_scheduler_the_same_drafts() -> None:
    results = [
        simulate(scenario(devices=12, scheduler=name), seed=5) for name in ("fcfs", "wisp-promise")
    ]
    for client in range(12):
        accepted = [
            result.rounds["accepted"][result.rounds["client"] == client] for result in results
        ]
        common = min(map(len, accepted)) - 1
        assert common > 20
        assert accepted[0][:common].tolist() == accepted[1][:common].tolist()


def test_a_session_that_does_not_fit_comes_back_cold() -> None:
    rounds = simulate(scenario("wisp-cache", 12, memory=TIGHT)).rounds
    later = np.concatenate([[False], rounds["response"][1:] >= 0]) & (rounds["new"] > 50)
    assert (rounds["cached"][later] == 0).any()
    assert (rounds["new"] + rounds["cached"] >= 60).all()


@pytest.mark.parametrize("scheduler", ["fcfs", "wisp-promise"])
def test_more_sessions_than_memory_holds_do_not_wear_it_out(scheduler: str) -> None:
    """With eight times as many devices as fit, sessions wait their turn, and few are computed twice."""
    few, many = (
        simulate(scenario("wisp-cache", n, scheduler=scheduler, memory=TIGHT, slo="1"))
        for n in (6, 48)
    )
    assert many.rounds["committed"].sum() > few.rounds["committed"].sum()
    assert many.evictions < len(many.responses["client"])
    read = [result.rounds["new"].sum() / result.rounds["committed"].sum() for result in (few, many)]
    assert read[1] < 2 * read[0]


def test_without_a_prefix_cache_every_round_reads_all() -> None:
    rounds = simulate(scenario("sled", 6)).rounds
    assert (rounds["cached"] == 0).all()
    assert (rounds["new"] >= 60).all()


def test_the_server_drafts_as_long_as_it_pays() -> None:
    """With a larger batch every verified token costs more, so AdaSpec's drafts get shorter."""
    draft, verify = ContextModel(1e-9, 1e-6, 1e-3), ContextModel(1e-9, 1e-3, 1e-2)
    deployment = Deployment(
        "pair", Endpoint("gpu", draft), Endpoint("gpu", verify), placement="server"
    )
    lengths, rule = [], parse_method("adaspec").prepare(environment(PairHashes("", ""), deployment))
    for devices in (1, 40):
        scene = scenario("adaspec", devices, deployment=deployment, source=iid(0.8, 8), slo="1", output_tokens=80,
                         batch_method=rule, duration_s=15.0)  # fmt: skip
        rounds = simulate(scene).rounds
        assert (rounds["accepted"] <= rounds["submitted"]).all()
        lengths.append(rounds["submitted"][rounds["cached"] > 0].mean())
    assert lengths[0] > 2 * lengths[1]


def test_two_groups_take_turns() -> None:
    source = RecordedRounds(replayed("fixed-k:k=4", calm()), levels=4, proactive=3)
    scene = scenario("specedge", 16, source=source, slo="1", output_tokens=60)
    rounds = simulate(scene).rounds
    batch = rounds["batch"][rounds["batch"] >= 0].astype(int)
    group = rounds["client"][rounds["batch"] >= 0] % 2
    for number in np.unique(batch):
        assert len(np.unique(group[batch == number])) == 1


def test_what_was_drafted_meanwhile_delays_the_device_by_a_step_at_most() -> None:
    deployment = replace(calm(), drafter=Endpoint("edge", InteractionModel(0, 0, 0, 0.03)))
    source = RecordedRounds(replayed("fixed-k:k=2", deployment), levels=2, proactive=3)
    rounds = simulate(
        scenario("wisp-cache", 1, deployment=deployment, source=source, slo="1")
    ).rounds
    same_response = rounds["response"][1:] == rounds["response"][:-1]
    begun_s = rounds["sent_s"][1:] - rounds["draft_s"][1:]
    delay_s = (begun_s - rounds["answered_s"][:-1])[same_response]
    assert delay_s.max() > 0
    assert (delay_s < 0.03 + 1e-9).all()
    assert (delay_s >= -1e-9).all()


def test_recorded_arrivals_that_find_their_device_busy_wait_and_are_counted() -> None:
    filled_queue = tuple(RequestArrival(0.1 * n, 60, 40) for n in range(100))
    scene = scenario(
        devices=2, arrivals=ReplayedArrivals(filled_queue), slo="4", duration_s=20.0, warmup_s=0.0
    )
    result = simulate(scene)
    assert sorted(np.round(result.responses["start_s"], 6)) == [
        round(request.at_s, 6) for request in filled_queue
    ]
    assert np.isinf(result.responses["end_s"]).any()
    assert compute_metrics(scene, result).overall.violation_rate > 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": 0}, "at least 1 device, not 0"),
        ({"slo": "900/s"}, "no batch can meet the SLO '900/s' of 900 tokens/s"),
        (
            {"prompt_tokens": 5000, "memory": KvCapacity(inf, 4096)},
            "exceeds the model's context of 4096",
        ),
        ({"memory": KvCapacity(50, 4096)}, "exceeds the server's KV memory of 50 tokens"),
        ({"warmup_s": 40.0}, "the warm-up of 40 s must end before the 40 s"),
        ({"output_tokens": 0}, "output_tokens must be at least 1, not 0"),
        ({"max_batch": 0}, "a batch must hold at least 1 request"),
    ],
)
def test_bad_input_is_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SkitError, match=message) as caught:
        scenario(**changes)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_lengths_that_nobody_knows_are_refused() -> None:
    with pytest.raises(SkitError, match="give --prompt-tokens and --output-tokens"):
        simulate(scenario(prompt_tokens=None))


def test_a_traces_length_beyond_the_context_is_refused() -> None:
    scene = scenario(
        arrivals=ReplayedArrivals((RequestArrival(0.0, 9000, 10),)), memory=KvCapacity(inf, 4096)
    )
    with pytest.raises(
        SkitError, match="a response of 9000 \\+ 10 tokens exceeds the model's context"
    ):
        simulate(scene)
