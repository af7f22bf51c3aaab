"""A method that drafts beyond a link, beside the same method with its draft model beside the target."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from environments import DEPLOYMENT, ENVIRONMENT
from report_builders import make_row
from tiny_models import clear_prompts, decode, disturbed, make_requests, make_runner, tiny_llama
from trace_builders import made_requests, write_trace

from specbench_kit.decoding.latency import TableModel
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.deployments.description import describe, described, restore
from specbench_kit.deployments.placing import can_be_colocated, colocate
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.colocation import Totals, colocation
from specbench_kit.metrics.statistics import units_of
from specbench_kit.reports.sections import colocation as wording
from specbench_kit.runs.deployment import Link
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import TraceFile

PLAIN = parse_method("autoregressive")
STEP_S, EDGE_STEP_S, PASS_S = 0.004, 0.003, 0.05


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> TraceFile:
    return write_trace(tmp_path_factory.mktemp("trace") / "t.parquet", made_requests(6))


def placed(rtt_s: float) -> Deployment:
    """A pass takes the same whatever is in it, prompts are cached, and the edge drafts faster than the server."""
    return Deployment(
        "test",
        drafter=Endpoint("edge", TableModel((EDGE_STEP_S,))),
        verifier=Endpoint("server", TableModel((PASS_S,) * 8)),
        link=Link(rtt_s=rtt_s),
        cached_prompts=True,
        colocated=Endpoint("server", TableModel((STEP_S,))),
    )


def run(
    trace: TraceFile, spec: str, deployment: Deployment, batch_size: int = 1
) -> list[RequestRecord]:
    method = parse_method(spec).prepare(ENVIRONMENT)
    return list(replay(method, trace.header, trace, deployment=deployment, batch_size=batch_size))


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(
    "spec", ["fixed-k:k=3", "threshold:max_draft=5", "sglang-ema", "fixed-k:drafter=suffix"]
)
def test_beside_the_target_the_same_rounds_take_what_a_run_there_takes(
    spec: str, batch_size: int, trace: TraceFile
) -> None:
    for deployment in (DEPLOYMENT, placed(0.03)):
        edge = run(trace, spec, deployment, batch_size)
        colocated_run = run(trace, spec, colocate(deployment), batch_size)
        assert [record.colocated_s for record in colocated_run] == [None] * 6
        assert [record.colocated_s for record in edge] == pytest.approx(
            [record.e2e_s for record in colocated_run], rel=1e-12
        )
        busy = [
            sum(step.prefill_s + step.draft_s + step.policy_s for step in record.rounds)
            for record in colocated_run
        ]
        assert sum(record.colocated_draft_s or 0.0 for record in edge) == pytest.approx(sum(busy))


def test_trees_are_timed_as_they_grow() -> None:
    target = tiny_llama()
    runners = tuple(make_runner(model, 2, 96) for model in (target, disturbed(target, 0.03)))
    requests = make_requests(clear_prompts(target, (3, 7, 12), 20), 20)
    for spec in ("opt-tree", "specedge:proactive=false,depth=3"):
        go = partial(decode, parse_method(spec), runners, requests)
        edge, colocated_run = go(deployment=DEPLOYMENT), go(deployment=colocate(DEPLOYMENT))
        for name, record in edge.items():
            assert record.colocated_s == pytest.approx(colocated_run[name].e2e_s, rel=1e-12)


def test_what_was_drafted_ahead_is_drafted_after_the_answer_beside_the_target() -> None:
    """A draft model that is the target guesses every answer, so that all it drafted ahead but the last is of use."""
    target = tiny_llama()
    runners = (make_runner(target, 1, 96), make_runner(target, 1, 96))
    requests = make_requests(clear_prompts(target, (5,), 24), 24)
    spec = "specedge:tree=chain,depth=2,budget=6,proactive_depth=2"
    (record,) = decode(parse_method(spec), runners, requests, deployment=placed(0.01)).values()
    assert all(step.aligned for step in record.rounds[:-1])
    forwards = round(sum(step.draft_s for step in record.rounds) / EDGE_STEP_S)
    unused = forwards - round((record.colocated_draft_s or 0.0) / STEP_S)
    assert 0 < unused <= 3
    passes = len(record.rounds) * PASS_S
    assert record.colocated_s == pytest.approx(0.01 + passes + (record.colocated_draft_s or 0.0))


def totals(trace: TraceFile, rtt_s: float) -> tuple[float, float, float, dict[str, float]]:
    """Seconds of all requests: at the edge, co-located, decoded plainly; and the metrics that hold them together."""
    deployment = placed(rtt_s)
    edge, plain = (
        run(trace, "fixed-k:k=4", deployment),
        list(replay(PLAIN, trace.header, trace, deployment=deployment)),
    )
    metrics = colocation(edge, plain, units_of(edge), described(deployment))
    sums = [
        sum(seconds or 0.0 for seconds in side)
        for side in zip(*((r.e2e_s, r.colocated_s) for r in edge), strict=True)
    ]
    return sums[0], sums[1], sum(record.e2e_s or 0.0 for record in plain), metrics


@pytest.mark.parametrize("name", ["rtt_window_s", "rtt_window_autoregressive_s"])
def test_just_inside_the_window_the_edge_wins_and_just_outside_it_loses(
    name: str, trace: TraceFile
) -> None:
    *_, metrics = totals(trace, 0.02)
    window_s = metrics[name]
    assert 0.003 < window_s < 0.2
    rival = ("rtt_window_s", "rtt_window_autoregressive_s").index(name) + 1
    inside, outside = totals(trace, 0.999 * window_s), totals(trace, 1.001 * window_s)
    assert inside[0] < inside[rival]
    assert outside[0] > outside[rival]
    assert inside[3][name] == pytest.approx(window_s)


def test_the_window_is_that_of_the_symbols(trace: TraceFile) -> None:
    """k = 4: r < 4 (4 - 3 ms) R / (R - 1) against the co-located method, and the server drafts 16 ms beside 50."""
    edge = run(trace, "fixed-k:k=4", placed(0.02))
    *_, metrics = totals(trace, 0.02)
    rounds = sum(len(record.rounds) for record in edge)
    assert metrics["rtt_window_s"] == pytest.approx(
        4 * (STEP_S - EDGE_STEP_S) * rounds / (rounds - 6)
    )
    assert metrics["rtt_window_overlapped_s"] == pytest.approx(4 * STEP_S)
    assert metrics["capacity_factor"] == pytest.approx(1 + 4 * STEP_S / PASS_S)


@pytest.mark.parametrize(
    ("plain_ms", "windows_ms"),
    [
        (100, (47, 144, 265, 319)),
        (50, (None, 47, 108, 134)),
        (30, (None, 8, 45, 61)),
        (20, (None, None, 13, 24)),
    ],
)
def test_the_paper_s_windows_come_out(plain_ms: float, windows_ms: tuple[int | None, ...]) -> None:
    """Speculation at a Distance: 5 tokens of 10 ms per round, acceptance .5, .7, .85, .9, verifying like decoding."""
    rounds = 10**6
    for alpha, window_ms in zip((0.5, 0.7, 0.85, 0.9), windows_ms, strict=True):
        tokens = (1 - alpha**6) / (1 - alpha)
        edge_s = rounds * (5 * 10 + plain_ms) / 1e3
        sums = Totals(1, rounds, 0.0, edge_s, edge_s, rounds * 0.05, rounds * plain_ms / 1e3)
        found_ms = 1e3 * sums.window_s(rounds * tokens * plain_ms / 1e3)
        assert round(found_ms) == (window_ms or 0)


def test_an_equal_drafter_never_wins_at_the_edge(trace: TraceFile) -> None:
    deployment = replace(placed(0.001), colocated=None)
    edge = run(trace, "fixed-k:k=4", deployment)
    metrics = colocation(edge, [], units_of(edge), described(deployment))
    assert metrics["rtt_window_s"] == pytest.approx(0, abs=1e-12)
    assert metrics["colocated_ratio"] < 1
    assert "colocated_speedup" not in metrics
    (line,) = wording.cautions("`it`", make_row(**metrics))
    assert line.startswith(
        "SERVER-ONLY IS FASTER: beside the server the same draft model would make `it` 1.0"
    )


@pytest.mark.parametrize("spec", ["server-tree", "layer-split", "autoregressive"])
def test_what_has_its_place_is_held_against_nothing(spec: str) -> None:
    assert not can_be_colocated(parse_method(spec), DEPLOYMENT)


def test_a_deployment_comes_back_with_its_drafter_beside_the_target() -> None:
    for deployment in (placed(0.02), DEPLOYMENT):
        assert restore(describe(deployment)) == deployment


def test_the_longer_the_link_the_worse_the_edge(trace: TraceFile) -> None:
    ratios = [totals(trace, rtt_s)[3]["colocated_ratio"] for rtt_s in (0.0, 0.004, 0.05)]
    assert all(near > far for near, far in pairwise(ratios))
    assert ratios[0] > 1 > ratios[-1]


def test_a_window_that_only_rounding_leaves_open_is_closed() -> None:
    totals = Totals(
        1, 4, 0.014, edge_s=0.3 + 0.014 * 3, colocated_s=0.1 + 0.2, drafting_s=0.2, verifying_s=0.1
    )
    assert 0 < totals.rtt_s + (totals.colocated_s - totals.edge_s) / 3 < 1e-15
    assert totals.window_s(totals.colocated_s) == 0


def test_the_best_beside_the_server_is_held_against_the_best_at_the_edge() -> None:
    rows = {
        "decoupled": make_row(speedup=1.3),
        "margin": make_row(speedup=0.9, colocated_speedup=3.9, colocated_ratio=0.9 / 3.9),
        "fixed-k": make_row(speedup=0.8, colocated_speedup=2.0, colocated_ratio=0.4),
    }
    found = wording.best_at_server(rows.items())
    assert found == wording.AtServer("margin", 3.9, "decoupled", 1.3)
    assert found.gain == pytest.approx(3)
    (line,) = wording.server_only([found], 1, None)
    assert line == (
        "SERVER-ONLY IS FASTER: with draft models on the server the fastest method (`margin`, 3.90x) is 3.00x as "
        "fast as what is fastest with them at the edge (`decoupled`, 1.30x), autoregressive decoding included."
    )
    slow = {"margin": rows["margin"]}
    assert wording.best_at_server(slow.items()) == wording.AtServer(
        "margin", 3.9, "autoregressive", 1.0
    )
    (line,) = wording.server_only([found, found], 5, None)
    assert line.startswith("SERVER-ONLY IS FASTER at 2 of 5 points: ")
    assert "is up to 3.00x as fast" in line


def test_no_method_that_is_slower_beside_the_server_is_named() -> None:
    row = make_row(speedup=2.0, colocated_speedup=1.5, colocated_ratio=2.0 / 1.5)
    assert wording.best_at_server([("near", row)]) is None
    assert wording.best_at_server([("plain", make_row(speedup=1.2))]) is None
    assert wording.server_only([], 1, None) == []
