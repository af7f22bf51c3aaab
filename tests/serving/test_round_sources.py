"""Sources of rounds, arrivals, service levels and memory."""

import os
import re
from math import inf
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from report_builders import make_record, make_round
from scenes import calm, scenario
from trace_builders import MAX_DRAFT, made_requests

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.loading import find
from specbench_kit.methods.spec import parse_method
from specbench_kit.profilers import loading
from specbench_kit.serving.acceptance_spec import parse_acceptance, parse_rates
from specbench_kit.serving.arrival_traces import read_arrivals
from specbench_kit.serving.arrivals import ClosedLoop, Poisson, RequestArrival
from specbench_kit.serving.memory import KvMemory, kv_capacity, verifier_profile
from specbench_kit.serving.round_sources import (
    ConfidenceModel,
    PositionRates,
    RecordedRounds,
    RoundSource,
    SimulatedRound,
    StopRuleRates,
    iid,
)
from specbench_kit.serving.schedulers.base import parse_scheduler
from specbench_kit.serving.schedulers.estimator import estimate_with_profile
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.slo import parse_slo, verification_budget_s
from specbench_kit.serving.systems.base import systems
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import TraceHeader

DATA = Path(os.environ.get("SKIT_DATA_DIR", "")) / "traces"
PUBLISHED = "TIMESTAMP,ContextTokens,GeneratedTokens"
AZURE = "arrived_at,num_prefill_tokens,num_decode_tokens"
needs_data = pytest.mark.skipif(
    "SKIT_DATA_DIR" not in os.environ, reason="SKIT_DATA_DIR is not set"
)


def drawn(source: RoundSource, count: int) -> list[SimulatedRound]:
    chance = np.random.default_rng(1).random((2, count))
    rounds, _ = source.rounds(source.begin(chance[0]).cursor, chance[1])
    return [
        SimulatedRound(*values)
        for values in zip(*(column.tolist() for column in rounds), strict=True)
    ]


@pytest.mark.parametrize(
    "source",
    [
        iid(0.7, 4),
        PositionRates((0.9, 0.5, 0.2)),
        iid(0.8, 8, StopRuleRates(0.8, 0.6)),
        PositionRates((0.9, 0.4, 0.7), StopRuleRates(1.0, 0.0)),
        iid(0.0, 3),
        iid(0.5, 0),
    ],
)
def test_what_is_typical_is_the_average_of_what_is_drawn(source: PositionRates) -> None:
    rounds = drawn(source, 40_000)
    steps, submitted, accepted = (
        sum(round_[column] for round_ in rounds) / len(rounds) for column in range(3)
    )
    assert steps == pytest.approx(source.typical.steps, rel=0.02)
    assert submitted == pytest.approx(source.typical.submitted, rel=0.02)
    assert 1 + accepted == pytest.approx(source.typical.committed, rel=0.02)
    assert all(
        round_.accepted <= round_.submitted <= round_.steps <= source.typical.longest
        for round_ in rounds
    )


def test_rates_by_place_are_drawn_from_the_source_of_that_place() -> None:
    source = parse_rates("curve:at=0-100-1000,rates=0.9-0.6-0.2,length=3,by=output")
    assert source is not None
    curve = source.source()
    chances = np.random.default_rng(2).random(20_000)
    for place, rate in ((0, 0.9), (100, 0.6), (1000, 0.2), (50_000, 0.2)):
        rounds, cursor = curve.rounds(np.full(len(chances), place), chances)
        expected = sum(rate**length for length in (1, 2, 3))
        # A step has the rate of its middle, so that a place is off by half a step's rise.
        assert rounds.accepted.mean() == pytest.approx(expected, abs=0.15)
        assert (cursor == place).all()


def test_long_answers_lose_what_their_curve_says() -> None:
    """Simulated answers of different lengths under a curve by output position: the mean falls as its integral."""
    lengths = {}
    for tokens in (50, 1500):
        scene = scenario(
            "wisp",
            4,
            source=parse_rates("curve:at=0-1500,rates=0.9-0.1,length=4,by=output").source(),  # type: ignore[union-attr]
            output_tokens=tokens,
        )
        rounds = simulate(scene).rounds
        lengths[tokens] = 1 + rounds["accepted"].mean()
    alone = parse_rates("iid:alpha=0.9,length=4").source().typical.committed  # type: ignore[union-attr]
    assert lengths[1500] < 0.7 * lengths[50]
    assert lengths[50] < 0.9 * alone


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("curve:at=0,rates=0.5", "equally many numbers, at least two, not 1 and 1"),
        ("curve:at=0-10,rates=0.5", "equally many numbers, at least two, not 2 and 1"),
        ("curve:at=10-5,rates=0.5-0.4", "must rise from 0 on: 10, 5"),
        ("curve:at=0-10,rates=0.5-1.4", "must lie in 0..1"),
        ("curve:at=0-10,rates=0.5-0.4,by=prompt", "by"),
    ],
)
def test_a_wrong_curve_is_refused_in_a_line(spec: str, message: str) -> None:
    with pytest.raises(SkitError, match=message):
        parse_rates(spec).source()  # type: ignore[union-attr]


def test_a_policy_that_asks_how_sure_the_draft_model_is_needs_rates_that_stay() -> None:
    deployment = find("adaspec-7b-l40").build()
    curve = "curve:at=0-100,rates=0.9-0.3"
    with pytest.raises(SkitError, match="which a curve does not say of each place"):
        parse_acceptance(curve, "adaspec", deployment, for_batch=True)
    assert parse_acceptance(curve, "fixed-k", deployment).typical.longest == 4


def test_a_tree_takes_a_forward_for_each_of_its_levels() -> None:
    tree = structs.replace(
        make_round(drafted=6, submitted=5, accepted=2),
        parents=(0, 0, 1, 1, 3),
        path=(1, 3),
        deepest=3,
    )
    chain = make_round(drafted=4, submitted=3, accepted=1)
    assert drawn(RecordedRounds([make_record("tree", tree)]), 1) == [SimulatedRound(3, 5, 2)]
    assert drawn(RecordedRounds([make_record("chain", chain)]), 1) == [SimulatedRound(4, 3, 1)]


def test_what_was_drafted_during_a_verification_takes_no_time_before_the_next_one() -> None:
    """`pearl` drafts its k tokens while it waits: the first of them is the new root, the others are sent at once."""
    rounds = {
        SimulatedRound(0, 0, 0, 4): make_round(drafted=4, submitted=0, accepted=0, proactive=4),
        SimulatedRound(0, 3, 3, 4): make_round(drafted=4, submitted=3, accepted=3, proactive=4),
        SimulatedRound(1, 3, 2, 4): make_round(drafted=5, submitted=3, accepted=2, proactive=4),
    }
    for simulated, recorded in rounds.items():
        assert drawn(RecordedRounds([make_record("chain", recorded)]), 1) == [simulated]


def test_a_tree_that_was_drafted_earlier_takes_no_forward() -> None:
    ready = structs.replace(
        make_round(drafted=4, submitted=3, accepted=1, proactive=4),
        parents=(0, 1, 0),
        path=(1,),
        deepest=2,
    )
    assert drawn(RecordedRounds([make_record("tree", ready)]), 1) == [SimulatedRound(0, 3, 1)]


def test_a_fixed_chain_commits_what_the_closed_form_says() -> None:
    alpha, length = 0.8, 5
    assert iid(alpha, length).typical.committed == pytest.approx(
        (1 - alpha ** (length + 1)) / (1 - alpha)
    )


def test_a_perfect_predictor_stops_at_the_first_rejection() -> None:
    for round_ in drawn(iid(0.6, 8, StopRuleRates(1.0, 1.0)), 500):
        assert round_.submitted == round_.accepted
        assert round_.steps == min(round_.submitted + 1, 8)


def test_recorded_rounds_come_in_their_order_with_their_lengths() -> None:
    header = TraceHeader(MAX_DRAFT, 0.0, (), {})
    records = list(replay(parse_method("fixed-k:k=3"), header, made_requests(3), deployment=calm()))
    source = RecordedRounds(records)
    sequences = [[(step.submitted, step.accepted) for step in record.rounds] for record in records]
    begun = source.begin(np.array([0.0, 0.5, 0.99]))
    cursor, rounds_drawn = begun.cursor, []
    for _ in range(min(map(len, sequences))):
        rounds, cursor = source.rounds(cursor, np.zeros(3))
        rounds_drawn.append(zip(rounds.submitted.tolist(), rounds.accepted.tolist(), strict=True))
    for sequence, expected in zip(zip(*rounds_drawn, strict=True), sequences, strict=True):
        assert list(sequence) == expected[: len(rounds_drawn)]
    assert (begun.prompt_tokens.tolist(), begun.output_tokens.tolist()) == ([3] * 3, [40] * 3)
    everything = [step for record in records for step in record.rounds]
    accepted = sum(step.accepted for step in everything) / sum(
        step.submitted for step in everything
    )
    assert source.typical.acceptance == pytest.approx(accepted)


def test_records_without_a_request_are_refused() -> None:
    with pytest.raises(SkitError, match="hold no finished request"):
        RecordedRounds([])


def test_a_closed_loop_thinks_and_random_arrivals_have_their_rate() -> None:
    two, chance = np.array([0, 1]), np.array([0.0, 0.5])
    first, second = (
        ClosedLoop(2.0, ramp_s=3.0).next_requests(two, 4, np.full(2, n), np.zeros(2), chance)
        for n in (0, 1)
    )
    assert (first.at_s.tolist(), first.gap_s.tolist()) == ([0.0, 1.5], [-inf, -inf])
    assert (second.at_s.tolist(), second.gap_s.tolist()) == ([-inf, -inf], [2.0, 2.0])
    many, chance = np.arange(100_000), np.random.default_rng(0).random(100_000)
    thought = ClosedLoop(2.0, exponential=True).next_requests(
        many, 100_000, many + 1, np.zeros(100_000), chance
    )
    assert thought.gap_s.mean() == pytest.approx(2, rel=0.02)
    leaving = ClosedLoop(2.0, leave=0.25, away_s=40.0)
    gap_s = leaving.next_requests(many, 100_000, many + 1, np.zeros(100_000), chance).gap_s
    away = gap_s != 2.0
    assert away.mean() == pytest.approx(0.25, rel=0.02)
    assert gap_s[away].mean() == pytest.approx(40, rel=0.02)
    arrivals = Poisson(8.0).next_requests(many % 4, 4, many, np.full(100_000, 3.0), chance)
    assert (arrivals.at_s - 3).mean() == pytest.approx(4 / 8, rel=0.02)


@pytest.mark.parametrize(
    ("leave", "away_s", "said"),
    [
        (1.5, 60.0, "leave is a share of responses"),
        (0.1, 0.0, "give both, such as leave=0.05,away_s=60"),
        (0.0, 60.0, "give both"),
        (0.1, -1.0, "give both"),
    ],
)
def test_devices_that_leave_are_gone_for_some_time(leave: float, away_s: float, said: str) -> None:
    with pytest.raises(SkitError, match=said):
        ClosedLoop(leave=leave, away_s=away_s)
    ClosedLoop(leave=0.1, away_s=0.5)


def test_confidences_of_a_rate_of_one_half_lie_evenly_about_it() -> None:
    confidences = ConfidenceModel((0.5,), spread=0.4)
    uniform = np.array([[0.5], [0.1], [0.9]])
    drawn_ = confidences.sample(np.full(3, -1), uniform)[:, 0]
    assert drawn_[0] == pytest.approx(0.5, abs=1e-9)
    assert drawn_[1] + drawn_[2] == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "azure.csv",
            f"{AZURE}\n2.5,100,7\n2.6,5,0\n3.0,9,2\n",
            [(0, 100, 7), (0.5, 9, 2)],
        ),
        (
            "published.csv",
            f"\ufeff{PUBLISHED}\n2023-11-16 18:15:46.5000000,374,44\n2023-11-16 18:15:50.7500000,396,109\n",
            [(0, 374, 44), (4.25, 396, 109)],
        ),
        (
            "zones.csv",
            f"{PUBLISHED}\n2024-05-10 01:00:00.5+00:00,2162,5\n2024-05-10 03:00:01+02:00,76,15\n",
            [(0, 2162, 5), (0.5, 76, 15)],
        ),
        (
            "burst.csv",
            "Timestamp,Model,Request tokens,Response tokens\n5,GPT-4,30,4\n",
            [(0, 30, 4)],
        ),
        ("times.csv", "Timestamp\n7.0\n4.0\n", [(0, None, None), (3, None, None)]),
        (
            "cake.jsonl",
            '{"timestamp": 500, "input_length": 8, "output_length": 3, "hash_ids": [1]}\n',
            [(0, 8, 3)],
        ),
    ],
)
def test_arrival_files_are_read_by_their_layout(
    tmp_path: Path, name: str, content: str, expected: list[tuple[float, int | None, int | None]]
) -> None:
    (tmp_path / name).write_text(content)
    arrivals = read_arrivals(tmp_path / name)
    assert [tuple(request) for request in arrivals.requests] == expected
    assert [request.at_s for request in arrivals.scaled(2.0).requests] == [
        at_s / 2 for at_s, _, _ in expected
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.csv", "Timestamp\n", "holds no request"),
        ("none.csv", "", "has the columns \\(none\\); known layouts"),
        (
            "other.csv",
            "when,what\n1,2\n",
            "has the columns what, when; known layouts: TIMESTAMP, ContextTokens",
        ),
        ("dates.csv", f"{PUBLISHED}\nyesterday,1,2\n", "dates.csv:2: not a request with TIMESTAMP"),
        ("words.csv", "Timestamp\nsoon\n", "words.csv:2: not a request with Timestamp"),
        ("minus.csv", f"{AZURE}\n1,-5,2\n", "numbers from 0 up"),
        ("half.jsonl", '{"timestamp": 1', "half.jsonl:1: not valid JSON"),
        ("bare.jsonl", "[]\n", "bare.jsonl:1: not a request with timestamp"),
        ("nowhere.csv", None, "cannot read the arrivals .*nowhere.csv"),
    ],
)
def test_a_bad_arrival_file_is_one_line(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(SkitError, match=message):
        read_arrivals(tmp_path / name)


@needs_data
@pytest.mark.parametrize(
    ("name", "count", "first"),
    [
        ("azure2023_conv.csv", 19_366, RequestArrival(0.0, 374, 44)),
        ("azure2023_code.csv", 8_819, RequestArrival(0.0, 4808, 10)),
        ("mooncake_conversation.jsonl", 12_031, RequestArrival(0.0, 6758, 500)),
        ("adaspec_conv.csv", None, RequestArrival(0.0)),
    ],
)
def test_the_real_traces_are_read_whole(
    name: str, count: int | None, first: RequestArrival
) -> None:
    filled_queue = read_arrivals(DATA / name).requests
    assert count in (None, len(filled_queue))
    assert filled_queue[0] == first
    assert read_arrivals(DATA / name, limit=5).requests == filled_queue[:5]


def test_classes_and_speeds_of_ones_own_with_their_shares() -> None:
    assert parse_slo("3").speeds == (6.0,)
    mixed = parse_slo("1:0.25,4:0.5,7.5/s:0.25")
    assert mixed.speeds == (2.0, 8.0, 7.5)
    assert [mixed.class_index((n + 0.5) / 8) for n in range(8)] == [0, 0, 1, 1, 1, 1, 2, 2]
    assert verification_budget_s(3, 6.0, 0.1, 0.02) == pytest.approx(0.38)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "5",
            "unknown SLO '5'; give a speed such as 7.5tok/s, or a class: class-1 (2 tokens/s), class-2 (4 tokens/s), ",
        ),
        ("-3/s", "unknown SLO '-3/s'"),
        ("1:0.5,2:0.4", "must add up to 1, as in 4/s:0.5,8/s:0.5; they are 0.9"),
        ("1:0.5,1:0.5", "names a class twice"),
        ("1:half", "needs a share after each colon"),
    ],
)
def test_a_bad_slo_is_one_line(text: str, message: str) -> None:
    with pytest.raises(SkitError, match=re.escape(message)):
        parse_slo(text)


def test_the_memory_for_kv_is_what_weights_leave_free() -> None:
    profile = verifier_profile(find("wisp"))
    assert profile is not None
    room = kv_capacity(profile, reserved=0.0)
    per_token = 2 * 64 * 8 * 128 * 2
    assert room.tokens * per_token == pytest.approx(80e9 - 32.76e9 * 2, rel=0.01)
    assert room.context == 40960
    assert kv_capacity(profile).tokens < room.tokens
    specedge = verifier_profile(find("specedge"))
    assert specedge is not None
    with pytest.raises(SkitError, match="the memory for KV is unknown, the source names no model"):
        kv_capacity(specedge)


def test_drafting_sessions_make_room_before_waiting_ones() -> None:
    residents = KvMemory(100, 5)
    for client in range(3):
        assert residents.pin(np.array([client]), np.array([30]), {}) == []
        residents.unpin(np.array([client]), np.array([30]))
    assert residents.pin(np.array([3]), np.array([40]), {0}) == [2]
    assert (residents.used, residents.peak) == (100, 100)
    assert residents.pin(np.array([3, 4]), np.array([40, 50]), {0, 1}) == [1, 0]


def test_a_session_is_let_in_only_where_it_fits_beside_the_others() -> None:
    residents = KvMemory(100, 2)
    assert residents.admit(0, 60)
    assert not residents.admit(1, 50)
    assert residents.pin(np.array([0]), np.array([65]), {}) == []
    residents.unpin(np.array([0]), np.array([0]))
    assert residents.admit(1, 50)
    assert (residents.used, residents.evictions) == (50, 0)


def test_an_estimator_of_another_model_is_refused() -> None:
    served = loading.load("wisp-table-12")
    error = estimate_with_profile(loading.load("wisp-section-4.4"), served)
    assert error.model is not None
    with pytest.raises(
        SkitError, match="'specedge-verify' is of no known model, but the server runs qwen3-32b"
    ):
        estimate_with_profile(loading.load("specedge-verify"), served)


def test_every_system_names_a_method_and_a_scheduler_that_exist() -> None:
    for name, system in systems.all().items():
        assert parse_method(system.method)
        assert parse_scheduler(system.scheduler)
        assert system.summary, name


@pytest.mark.parametrize(("alpha", "length"), [(0.6, 8), (0.95, 4), (0.0, 3), (0.3, 1)])
def test_the_chance_of_a_next_token_is_found_in_averages(alpha: float, length: int) -> None:
    assert iid(alpha, length).typical.rate == pytest.approx(alpha, abs=1e-9)


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.0, 1.25])
def test_rates_that_are_moved_are_so_many_times_the_recorded_ones(factor: float) -> None:
    """Drafts stay as they were; a token whose predecessors were accepted is accepted so many times as often."""
    stated = iid(0.7, 4)
    rounds = [
        make_round(drafted=4, submitted=4, accepted=entry.accepted)
        for entry in drawn(stated, 20000)
    ]
    recorded = RecordedRounds([make_record("answer", *rounds)])
    moved = recorded.with_rates_times(factor)
    assert stated.with_rates_times(factor).typical.rate == pytest.approx(0.7 * factor)
    assert moved.typical.rate == pytest.approx(0.7 * factor, abs=0.01)
    assert recorded.typical.rate == pytest.approx(0.7, abs=0.01)
    before, after = drawn(recorded, 1), drawn(moved, 1)
    assert [entry._replace(accepted=0) for entry in before] == [
        entry._replace(accepted=0) for entry in after
    ]
    accepted, kept = (source.tables()[0][2] for source in (recorded, moved))
    assert 0 <= kept.min() <= kept.max() <= 4
    assert (kept <= accepted).all() if factor <= 1 else (kept >= accepted).all()


def test_no_rate_is_moved_above_1() -> None:
    assert iid(0.9, 3).with_rates_times(1.25).rates == (1.0, 1.0, 1.0)
    recorded = RecordedRounds(
        [make_record("answer", *[make_round(drafted=3, submitted=3, accepted=2)] * 9)]
    )
    assert recorded.with_rates_times(1.25).typical.acceptance == 1.0
