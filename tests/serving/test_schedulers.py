"""The batches of each scheduler, which is called as a live server calls it."""

from dataclasses import dataclass, field, replace
from itertools import combinations
from random import Random

import numpy as np
import pytest
from scenes import DEPLOYMENT, MIX, VERIFY, equal_results, scenario

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import BatchSums, InteractionModel, LatencyModel, TableModel
from specbench_kit.serving.memory import KvCapacity
from specbench_kit.serving.metrics import compute_metrics
from specbench_kit.serving.round_sources import iid
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.base import (
    BatchBuilder,
    BatchLimits,
    Decision,
    Queue,
    parse_scheduler,
    schedulers,
)
from specbench_kit.serving.schedulers.estimator import Estimator, EstimatorError
from specbench_kit.serving.schedulers.fcfs import Fcfs
from specbench_kit.serving.schedulers.waiting import WaitingRound
from specbench_kit.serving.simulation import simulate

PLAIN = InteractionModel(a_s=0.01, b_compute_s=0, b_read_s=0, c_s=0.1)
"""100 ms, and 10 ms for each new token."""


def filled_queue(
    spec: str,
    requests: list[WaitingRound],
    model: LatencyModel = PLAIN,
    limits: BatchLimits | None = None,
) -> Queue:
    """Return a queue in which the requests wait."""
    estimator = Estimator(model)
    queue = parse_scheduler(spec).queue(estimator, limits or BatchLimits())
    for request in requests:
        estimator.estimate(request)
        queue.add(request)
    return queue


def waiting(
    client: int, deadline_s: float, new: int = 5, tokens: float = 3.0, cached: int = 100
) -> WaitingRound:
    return WaitingRound(client, new, cached, client / 1000, deadline_s, tokens, deadline_s)


def clients(queue: Queue, now_s: float = 0.5) -> list[int]:
    return [request.client for request in queue.next_batch(now_s).batch]


@pytest.mark.parametrize(
    "name", [*sorted(schedulers.all().keys() - {"wisp-paper"}), "wisp-paper:late_lane=true"]
)
def test_each_request_is_handed_out_once_within_the_limits(name: str) -> None:
    """No request is lost, doubled or over the limits, with additive estimators and others."""
    for seed, model in ((0, VERIFY), (1, VERIFY), (2, TableModel((0.02, 0.03, 0.05)))):
        random = Random(seed)
        requests = [
            waiting(
                client,
                random.uniform(0.3, 4),
                random.randint(1, 9),
                random.uniform(1, 5),
                random.randint(0, 200),
            )
            for client in range(11)
        ]
        queue = filled_queue(name, requests, model, BatchLimits(4, 700))
        handed, now_s = [], 0.5
        while queue and now_s < 60:
            batch = queue.next_batch(now_s).batch
            assert len(batch) <= 4
            assert sum(request.kv_tokens for request in batch) <= 700
            handed += batch
            now_s += 0.2
        assert sorted(request.client for request in handed) == list(range(11))


def test_fcfs_takes_the_first_and_edf_the_most_urgent() -> None:
    requests = [(0, 9.0), (1, 2.0), (2, 5.0)]
    assert clients(
        filled_queue("fcfs", [waiting(*request) for request in requests], limits=BatchLimits(2))
    ) == [0, 1]
    assert clients(
        filled_queue("edf", [waiting(*request) for request in requests], limits=BatchLimits(2))
    ) == [1, 2]


def test_static_waits_for_a_full_batch_or_its_time_out() -> None:
    queue = filled_queue("static:size=3,timeout_s=0.4", [waiting(100, 9), waiting(101, 9)])
    decision = queue.next_batch(0.2)
    assert decision.batch == []
    assert decision.retry_s == pytest.approx(0.5)
    assert clients(queue, 0.5) == [100, 101]
    assert clients(
        filled_queue("static:size=2,timeout_s=9", [waiting(n, 9) for n in range(3)]), 0.1
    ) == [0, 1]
    assert clients(
        filled_queue("static:size=2,timeout_s=9,groups=2", [waiting(n, 9) for n in range(4)]), 0.1
    ) == [0, 2]


def test_prompts_go_first_as_long_as_all_fits() -> None:
    running = [waiting(n, 9, new=1, cached=200) for n in range(2)]
    prompts = [waiting(n, 9, new=300, cached=0) for n in (2, 3)]
    queue = filled_queue("prefill-first", [*running, *prompts], limits=BatchLimits(9, 750))
    assert clients(queue) == [2]
    grown = waiting(2, 9, new=1, cached=300)
    queue.estimator.estimate(grown)
    queue.add(grown)
    assert clients(queue) == [0, 1, 2]
    assert clients(queue) == [3]


def test_a_step_has_so_many_tokens_and_takes_prompts_in_pieces() -> None:
    """Two running requests take 2 of 12 tokens, a prompt of 8 is computed whole, the next one 2 of its 20."""
    running = [waiting(n, 9, new=1, cached=200) for n in range(2)]
    prompts = [
        waiting(2, 9, new=8, cached=0),
        waiting(3, 9, new=20, cached=0),
        waiting(4, 9, new=5, cached=0),
    ]
    queue = filled_queue("chunked:tokens=12", [*running, *prompts])
    decision = queue.next_batch(0.5)
    assert [entry.client for entry in decision.batch] == [0, 1, 2, 3]
    assert decision.chunks == {3: 2}


def test_what_outgrows_the_memory_makes_room_in_the_order_in_which_it_began() -> None:
    running = [waiting(n, 9, new=1, cached=200) for n in range(3)]
    queue = filled_queue(
        "chunked", [*running, waiting(3, 9, new=50, cached=0)], limits=BatchLimits(9, 602)
    )
    assert clients(queue) == [0, 1]


def test_in_pieces_or_at_once_the_same_tokens_are_computed() -> None:
    """A prompt of 60 alone takes 60 steps of 1 token, and its first output token comes with the last of them."""
    scenes = [
        scenario("centralized", 1, scheduler=f"chunked:tokens={tokens}") for tokens in (1, 60)
    ]
    pieces, at_once = (simulate(scene) for scene in scenes)
    computed = [
        result.batches["new"][: 60 if result is pieces else 1].sum() for result in (pieces, at_once)
    ]
    assert computed == [60, 60]
    first_s = [
        float((result.responses["first_s"] - result.responses["start_s"])[0])
        for result in (pieces, at_once)
    ]
    last_s = pieces.batches["ended_s"][59] - at_once.batches["ended_s"][0]
    assert first_s[0] - first_s[1] == pytest.approx(last_s)


def test_a_server_without_kv_computes_all_of_every_round_though_in_pieces() -> None:
    """What it computed of one round in pieces is no KV of the next one, of another response least of all."""
    scene = scenario("sled", 4, scheduler="chunked:tokens=64", source=iid(0.6, 4))
    result = simulate(scene)
    rounds, batches = result.rounds, result.batches
    verified = np.isfinite(rounds["ended_s"])
    order = np.lexsort((rounds["ended_s"], rounds["response"], rounds["client"]))
    order = order[verified[order]]
    names = ("client", "response", "committed", "submitted")
    client, response, committed, submitted = (rounds[name][order] for name in names)
    begins = np.flatnonzero(
        (np.diff(client, prepend=-1) != 0) | (np.diff(response, prepend=-1) != 0)
    )
    before = np.cumsum(committed) - committed
    before = before - np.repeat(before[begins], np.diff(begins, append=len(before)))
    needed = (60 + before + submitted).sum()
    assert len(begins) > 20
    # Rounds that are under way at the end are computed in part.
    longest = 4 * (60 + 40 + 4)
    assert needed <= batches["new"].sum() <= needed + longest


@pytest.mark.parametrize("drafting", ["wisp-cache", "adaspec", "centralized"])
def test_memory_and_answers_hold_where_prompts_come_in_pieces(drafting: str) -> None:
    """Memory is so small that sessions are evicted between chunks."""
    scene = scenario(
        drafting,
        6,
        scheduler="chunked:tokens=16",
        memory=KvCapacity(300),
        max_batch=6,
        duration_s=20.0,
    )
    result = simulate(scene)
    assert result.evictions > 0
    assert result.peak_kv_tokens <= 300
    assert result.batches["new"].max() <= 16
    ended = np.isfinite(result.responses["end_s"])
    assert ended.sum() > 6
    assert (result.responses["committed"][ended] == 40).all()


@pytest.mark.parametrize("spec", ["wisp-promise:guard_s=0.5,amortise=0", "wisp-paper:guard_s=0.5"])
def test_wisp_serves_critical_requests_by_deadline_and_then_the_most_useful(spec: str) -> None:
    """Requests due by 1.0 s are critical at 0.5 s; a token costs 10 ms, so fewer new tokens have more utility."""
    requests = [
        waiting(0, 5, new=20),
        waiting(1, 1.1),
        waiting(2, 5, new=2),
        waiting(3, 0.9),
        waiting(4, 5, new=8),
    ]
    assert clients(filled_queue(spec, requests)) == [3, 1, 2, 4]


def test_a_round_is_due_by_its_own_deadline_on_paper_and_by_the_promise_of_its_response_otherwise() -> (
    None
):
    """Request 0 is far ahead of its promise, request 1 behind; each takes 150 ms, and one fits."""
    ahead = WaitingRound(0, 5, 100, 0.0, 0.70, 3.0, 9.0)
    behind = WaitingRound(1, 5, 100, 0.0, 9.0, 3.0, 0.70)
    first = {
        spec: clients(filled_queue(spec, [ahead, behind], limits=BatchLimits(1)))
        for spec in (
            *("wisp-paper:guard_s=0.1", "edf", "edf:by=round", "knapsack:by=round"),
            *(
                "wisp-promise:guard_s=0.1,amortise=0",
                "edf:by=promise",
                "knapsack",
                "knapsack:by=promise",
                "wisp-paper:guard_s=0.1,by=promise",
            ),
        )
    }
    assert list(first.values()) == [*[[0]] * 4, *[[1]] * 5]


@pytest.mark.parametrize("spec", ["wisp-promise:guard_s=0.1,amortise=0", "wisp-paper:guard_s=0.1"])
def test_a_wisp_batch_ends_at_the_first_request_that_would_break_a_deadline(spec: str) -> None:
    """The critical request takes 150 ms and is due in 210 ms: 5 more tokens fit, 20 do not and end the batch."""
    requests = [
        waiting(0, 0.71),
        waiting(1, 9, new=5, tokens=9),
        waiting(2, 9, new=20, tokens=9),
        waiting(3, 9, new=1, tokens=0.1),
    ]
    queue = filled_queue(spec, requests)
    assert clients(queue) == [0, 1]
    assert clients(queue, 0.7) == [2, 3]


def test_late_requests_use_the_room_that_is_left_and_hold_nobody_up() -> None:
    late, urgent = waiting(0, 0.4), waiting(1, 0.72)
    queue = filled_queue("wisp-promise:guard_s=0.2,amortise=0", [late, urgent])
    assert clients(queue) == [1, 0]
    assert clients(
        filled_queue("wisp-promise:guard_s=0.2,amortise=0", [waiting(0, 0.4), waiting(1, 0.66)])
    ) == [1]
    assert clients(
        filled_queue("wisp-promise:guard_s=0.2,amortise=0", [waiting(0, 0.1), waiting(1, 0.2)])
    ) == [1, 0]


@pytest.mark.parametrize(
    ("spec", "order"),
    [("wisp-promise:guard_s=0.1", [1, 2, 0]), ("wisp-paper:guard_s=0.1,late_lane=true", [0, 1, 2])],
)
def test_among_late_requests_the_least_late_comes_first_or_the_one_that_came_first(
    spec: str, order: list[int]
) -> None:
    """They are late by 0.4 s, 0.1 s and 0.2 s, and a batch has room for one."""
    queue = filled_queue(
        spec, [waiting(0, 0.1), waiting(1, 0.4), waiting(2, 0.3)], limits=BatchLimits(1)
    )
    assert [clients(queue) for _ in range(3)] == [[client] for client in order]


def test_late_requests_go_first_where_the_others_can_wait_three_times_as_long() -> None:
    """The late request takes 50 ms, the other 150 ms alone: it yields if it has 200 ms to spare."""
    assert clients(
        filled_queue("wisp-promise:amortise=0", [waiting(0, 0.4), waiting(1, 0.86)])
    ) == [0, 1]
    assert clients(
        filled_queue("wisp-promise:amortise=0", [waiting(0, 0.4), waiting(1, 0.84)])
    ) == [1, 0]


def test_a_short_batch_may_grow_whatever_was_promised() -> None:
    """The first is due after 160 ms; a batch may take 5.1 times the 100 ms of an empty one, so 8 requests fit."""
    queue = filled_queue(
        "wisp-promise:amortise=5.1", [waiting(0, 0.66), *(waiting(n, 9.0) for n in range(1, 20))]
    )
    assert clients(queue) == list(range(8))


def test_without_a_late_lane_one_expired_request_stops_every_batch() -> None:
    queue = filled_queue("wisp-paper", [waiting(0, 0.4), waiting(1, 9.0)])
    assert [clients(queue, now_s) for now_s in (0.5, 1.0, 2.0)] == [[], [], []]
    scene, lane = (
        scenario("wisp-cache", 120, scheduler=spec, prompt_tokens=500)
        for spec in ("wisp-paper", "wisp-paper:late_lane=true")
    )
    livelocked, served = simulate(scene), simulate(lane)
    assert livelocked.refusals > 1
    assert livelocked.idle_waiting_s > 10
    assert (served.refusals, served.idle_waiting_s) == (0, 0.0)
    assert compute_metrics(scene, livelocked).overall.violation_rate == 1.0


def test_knapsack_finds_what_trying_every_batch_finds() -> None:
    random = Random(4)
    for _ in range(40):
        requests = [
            waiting(n, random.uniform(0.5, 1.6), random.randint(1, 30), random.uniform(1, 6))
            for n in range(6)
        ]
        queue = filled_queue("knapsack:guard_s=0.3", requests)
        batch = [
            entry
            for entry in queue.next_batch(0.5).batch
            if 0.5 + entry.isolated_s <= entry.deadline_s
        ]
        batches = (chosen for size in range(7) for chosen in combinations(requests, size))
        assert worth(batch) == max(worth(chosen) for chosen in batches if met(chosen))


def met(batch: tuple[WaitingRound, ...]) -> bool:
    end_s = 0.5 + PLAIN.seconds([(entry.new, entry.cached) for entry in batch])
    return all(end_s <= entry.deadline_s for entry in batch)


def worth(batch: list[WaitingRound] | tuple[WaitingRound, ...]) -> tuple[int, float]:
    critical = sum(entry.deadline_s - entry.isolated_s - 0.3 <= 0.5 for entry in batch)
    return critical, round(sum(entry.expected_tokens for entry in batch), 9)


def test_wisp_comes_within_a_tenth_of_the_best_batch_on_short_queues() -> None:
    """Expected tokens in time are compared over random queues of up to 12 requests of published size and speed."""
    random, tokens = Random(0), {"wisp-promise": 0.0, "knapsack": 0.0}
    for _ in range(150):
        drawn = [
            (
                n,
                random.uniform(0.53, 2.5),
                random.randint(1, 9),
                random.uniform(1, 5),
                random.randint(50, 800),
            )
            for n in range(random.randint(1, 12))
        ]
        for name in tokens:
            queue = filled_queue(name, [waiting(*request) for request in drawn], VERIFY)
            batch = queue.next_batch(0.5).batch
            end_s = 0.5 + VERIFY.seconds([(entry.new, entry.cached) for entry in batch])
            tokens[name] += sum(
                entry.expected_tokens for entry in batch if end_s <= entry.deadline_s
            )
    assert 0.9 * tokens["knapsack"] <= tokens["wisp-promise"]


@pytest.mark.parametrize("devices", [6, 9, 12])
def test_wisp_keeps_promises_nearly_as_well_as_the_best_batches(devices: int) -> None:
    """The server is so slow that few devices overload it, and the queue never exceeds 12."""
    slow = InteractionModel(a_s=2e-3, b_compute_s=0, b_read_s=4e-5, c_s=0.1)
    kept_promises = {
        name: 1 - rate("violation_rate", name, devices, slow)
        for name in ("wisp-promise", "knapsack")
    }
    assert kept_promises["wisp-promise"] >= 0.9 * kept_promises["knapsack"]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("slo", "devices"),
    [
        (MIX, (75, 140)),
        ("4", (65,)),
        *(
            pytest.param(*load, marks=pytest.mark.nightly)
            for load in [
                (MIX, (50, 100)),
                ("1", (180, 270)),
                ("2", (115, 140, 175)),
                ("3", (75, 95, 130)),
                ("4", (55, 90)),
            ]
        ),
    ],
)
def test_wisp_breaks_no_more_promises_than_fcfs(
    slo: str, devices: tuple[int, ...], seed: int
) -> None:
    """Loads go from light to an overload by half; both schedulers see the same drafts.

    Left out is what the scheduler's own description excepts: one class just past the limit.
    """
    for number in devices:
        ours, theirs = (
            rate("violation_rate", name, number, seed=seed, slo=slo)
            for name in ("wisp-promise", "fcfs")
        )
        assert ours <= theirs, (number, ours, theirs)


def rate(
    what: str,
    scheduler: str,
    devices: int,
    verify: LatencyModel = VERIFY,
    seed: int = 0,
    slo: str = MIX,
) -> float:
    deployment = replace(DEPLOYMENT, verifier=replace(DEPLOYMENT.verifier, latency=verify))
    spans = {"duration_s": 90.0, "warmup_s": 10.0}
    scene = scenario(
        "wisp-cache",
        devices,
        scheduler=scheduler,
        deployment=deployment,
        prompt_tokens=500,
        slo=slo,
        **spans,
    )
    figure: float = getattr(compute_metrics(scene, simulate(scene, seed)).overall, what)
    return figure


def test_an_estimator_may_be_wrong_while_the_server_is_not() -> None:
    errors = EstimatorError(), EstimatorError(factor=2.0), EstimatorError(noise=0.3)
    scenes = [scenario(estimator=error) for error in errors]
    right, double, noisy = (
        compute_metrics(scene, simulate(scene)).server.estimate_over_true for scene in scenes
    )
    assert right == pytest.approx(1.0)
    assert double == pytest.approx(2.0)
    assert noisy != pytest.approx(1.0, abs=1e-6)
    assert equal_results(simulate(scenes[2], 1), simulate(scenes[2], 1))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("wisp-papr", "unknown scheduler 'wisp-papr' \\(did you mean 'wisp-paper'\\?\\)"),
        ("wisp", "unknown scheduler 'wisp' \\(did you mean 'wisp-paper' or 'wisp-promise'\\?\\)"),
        (
            "wisp-paper:guard=1",
            "wisp-paper: unknown option 'guard' .did you mean 'guard_s'.*; known: guard_s, late_lane",
        ),
        ("wisp-paper:guard_s=-1", "wisp-paper: guard_s must not be negative, but is -1.0"),
        ("wisp-promise:foreseen=-1", "wisp-promise: foreseen must not be negative, but is -1"),
        ("wisp-promise:guard_s=-1", "guard_s must not be negative"),
        ("wisp-promise:amortise=-1", "amortise must not be negative"),
        ("static:size=0", "static: size must be at least 1, not 0"),
        ("knapsack:window=40", "window must lie in 1..16"),
        ("edf:by=luck", "edf: by must be one of round, promise, not 'luck'"),
        ("prefill-first:prompt_tokens=0", "prompt_tokens must be at least 1"),
    ],
)
def test_a_bad_spec_is_one_line(spec: str, message: str) -> None:
    with pytest.raises(SkitError, match=message):
        parse_scheduler(spec)


@pytest.mark.parametrize(
    ("times", "message"), [(2, "does not wait: it is broken"), (1, "beyond the server's limits")]
)
def test_a_broken_scheduler_is_found_out(
    times: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scenario, "make_scheduler", lambda _scenario: Broken(times))
    with pytest.raises(SkitError, match=message):
        simulate(scenario(max_batch=2))


@dataclass(frozen=True)
class Broken(Fcfs):
    """Hands everything out, several times over."""

    times: int = 1

    def queue(self, estimator: Estimator, limits: BatchLimits) -> Queue:
        queue = super().queue(estimator, BatchLimits())
        single = queue.next_batch
        queue.next_batch = lambda now_s: Decision(self.times * single(now_s).batch)  # type: ignore[method-assign]
        return queue


@dataclass(frozen=True)
class Bent(LatencyModel):
    """The slower of reading and computing, which is not additive over requests; counts its evaluations."""

    calls: list[BatchSums] = field(default_factory=list)

    def of_sums(self, sums: BatchSums) -> float:
        self.calls.append(sums)
        return max(0.02 + 1e-5 * sums.cached, 0.01 * sums.linear)


def test_any_form_serves_a_scheduler_at_one_question_per_candidate() -> None:
    """64 requests of 5 tokens take 50 ms each once computing exceeds reading; the model is asked once for each."""
    model = Bent()
    estimator = Estimator(model)
    requests = [waiting(n, 9.0, cached=500) for n in range(64)]
    for request in requests:
        estimator.estimate(request)
    batch = BatchBuilder(estimator, BatchLimits())
    model.calls.clear()
    assert [batch.take(request, 0.0) for request in requests] == [True] * 64
    assert batch.seconds == pytest.approx(64 * 0.05) == estimator.batch_s(requests)
    assert [sums.requests for sums in model.calls] == [*range(1, 65), 64]


def test_noise_is_part_of_what_any_form_expects_of_a_batch() -> None:
    for model in (PLAIN, Bent()):
        estimator = Estimator(model, EstimatorError(factor=2.0, noise=0.3))
        requests = [waiting(n, 99.0) for n in range(3)]
        batch = BatchBuilder(estimator, BatchLimits())
        for request in requests:
            estimator.estimate(request)
            batch.add(request)
        noise_s = sum(
            entry.isolated_s - 2 * model.seconds([(entry.new, entry.cached)]) for entry in requests
        )
        assert noise_s != 0
        together_s = 2 * model.seconds([(entry.new, entry.cached) for entry in requests])
        assert batch.seconds == pytest.approx(together_s + noise_s)
        assert estimator.batch_s(requests) == pytest.approx(together_s + noise_s)
