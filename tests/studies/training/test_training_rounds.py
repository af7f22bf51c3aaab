"""The fast rollout gives exactly the rounds and the time of a replay."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from trace_builders import DRAFT_S, MAX_DRAFT, VERIFY_S, made_requests, write_trace

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.acceptance import counts
from specbench_kit.metrics.latency import wasted_time
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.predictors.artefact import Predictor, save
from specbench_kit.predictors.base import FEATURES, families
from specbench_kit.predictors.library import PairHashes
from specbench_kit.studies.training.contenders import feature_score
from specbench_kit.studies.training.evaluation import to_records
from specbench_kit.studies.training.examples import extract
from specbench_kit.studies.training.offsets import Offsets, read_offsets
from specbench_kit.studies.training.rounds import (
    PlannedDrafts,
    fastest_lengths,
    fixed_length,
    play,
    stop_at_rejection,
    stop_below,
)
from specbench_kit.studies.training.timing import Timing
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import TraceFile

TIMING = Timing(DRAFT_S, VERIFY_S, 0.0)
PAIR = PairHashes("a" * 64, "b" * 64)
COLUMNS = ("drafted", "submitted", "accepted", "committed")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> TraceFile:
    return write_trace(tmp_path_factory.mktemp("trace") / "t.parquet", made_requests(12))


@pytest.fixture(scope="module")
def offsets(trace: TraceFile) -> Offsets:
    return read_offsets(trace)


def rounds_of(records: list[RequestRecord]) -> list[list[tuple[int, ...]]]:
    return [
        [tuple(getattr(r, column) for column in COLUMNS) for r in record.rounds]
        for record in records
    ]


def threshold_plan(offsets: Offsets, threshold: float) -> PlannedDrafts:
    return stop_below(feature_score(offsets, name="confidence"), threshold, send_last=True)


PLANS = {
    "autoregressive": partial(fixed_length, count=0),
    "fixed-k:k=1": partial(fixed_length, count=1),
    "fixed-k:k=6": partial(fixed_length, count=6),
    "threshold:threshold=0.4,max_draft=6": partial(threshold_plan, threshold=0.4),
    "threshold:threshold=0.9,max_draft=6": partial(threshold_plan, threshold=0.9),
}


@pytest.mark.parametrize("spec", PLANS)
def test_the_rollout_is_the_replay(spec: str, trace: TraceFile, offsets: Offsets) -> None:
    replayed = list(replay(parse_method(spec), trace.header, trace))
    played = to_records(offsets, play(offsets, PLANS[spec](offsets)), TIMING, 0.0)
    assert rounds_of(played) == rounds_of(replayed)
    seconds = [sum(r.draft_s + r.verify_s for r in record.rounds) for record in played]
    assert seconds == pytest.approx([record.e2e_s for record in replayed])


@pytest.mark.parametrize(
    ("family", "threshold"), [("logistic", 0.5), ("xgboost", 0.7), ("mlp", 0.3)]
)
@pytest.mark.parametrize("names", [FEATURES, ("confidence", "draft_position")])
def test_a_predictor_is_played_as_wisp_replays_it(
    family: str,
    threshold: float,
    names: tuple[str, ...],
    trace: TraceFile,
    offsets: Offsets,
    tmp_path: Path,
) -> None:
    examples = extract(offsets, names)
    scorer = families.get(family)().fit(examples, examples, {}, seed=0)
    save(tmp_path / "saved", Predictor(family, scorer, names, threshold, "test", PAIR))
    method = parse_method(f"wisp:predictor={tmp_path / 'saved'},max_draft={MAX_DRAFT}").prepare(
        environment(PAIR, None)
    )
    scores = scorer.score_many(offsets.features(names).reshape(-1, len(names))).reshape(
        len(offsets), MAX_DRAFT
    )
    played = to_records(offsets, play(offsets, stop_below(scores, threshold)), TIMING, 0.0)
    assert rounds_of(played) == rounds_of(list(replay(method, trace.header, trace)))
    assert {r.submitted for record in played for r in record.rounds} == set(range(MAX_DRAFT + 1))


def test_metrics_of_the_rollout_are_those_of_the_replay(trace: TraceFile, offsets: Offsets) -> None:
    sides = [
        list(replay(parse_method("fixed-k:k=3"), trace.header, trace)),
        to_records(offsets, play(offsets, fixed_length(offsets, 3)), TIMING, 0.0),
    ]
    groups = [RequestGroup(records) for records in sides]
    assert counts(groups[0]) == counts(groups[1])
    for name, value in wasted_time(groups[0].rounds).items():
        assert wasted_time(groups[1].rounds)[name] == pytest.approx(value)


def test_speed_is_committed_tokens_per_second_with_decisions_paid_for(offsets: Offsets) -> None:
    plan = fixed_length(offsets, 2)
    rounds = play(offsets, plan)
    seconds = len(rounds.offset) * (2 * (DRAFT_S + 0.001) + VERIFY_S[2])
    assert rounds.committed.sum() == len(offsets)
    assert TIMING.speed(offsets, plan, 0.001) == pytest.approx(len(offsets) / seconds)


def test_rounds_of_part_of_the_requests_are_the_same_as_in_all(offsets: Offsets) -> None:
    part = offsets.take(np.isin(offsets.request, [2, 5, 11]))
    alone, among = play(part, stop_at_rejection(part)), play(offsets, stop_at_rejection(offsets))
    chosen = np.isin(offsets.request[among.offset], [2, 5, 11])
    np.testing.assert_array_equal(alone.committed, among.committed[chosen])


@pytest.mark.parametrize("draft_s", [1e-4, DRAFT_S, 0.02])
def test_no_lengths_are_faster_than_the_oracles(draft_s: float, offsets: Offsets) -> None:
    """Random lengths, right ones and longer ones; what never drafts is slow where drafts are cheap."""
    timing = structs.replace(TIMING, draft_s=draft_s, link_s=(0.03,) * len(VERIFY_S))
    round_s = np.array(timing.round_s)
    rounds = play(offsets, fastest_lengths(offsets, timing.round_s))
    least_s = round_s[rounds.drafted].sum()
    assert rounds.committed.sum() == len(offsets)
    assert (rounds.accepted == rounds.submitted).all()
    random = np.random.default_rng(0)
    for _ in range(200):
        lengths = random.integers(0, random.integers(1, MAX_DRAFT + 2), len(offsets))
        tried = play(offsets, PlannedDrafts(lengths, lengths))
        assert round_s[tried.drafted].sum() >= least_s * (1 - 1e-12)
    never_wrong = play(offsets, stop_at_rejection(offsets))
    assert round_s[never_wrong.drafted].sum() > least_s
    if draft_s == 0.02:
        assert rounds.drafted.max() == 0, (
            "a forward of the target takes half as long as one of the draft model"
        )


def test_the_oracles_lengths_are_those_of_trying_all(offsets: Offsets) -> None:
    """The last eight tokens of an answer, over all lengths of all rounds."""
    last = np.flatnonzero((offsets.request == 3) & (offsets.remaining <= 8))
    part = offsets.take(np.isin(np.arange(len(offsets)), last))
    round_s = TIMING.round_s

    def least_s(row: int) -> float:
        if row == len(part):
            return 0.0
        ways = range(min(part.matched[row], MAX_DRAFT) + 1)
        return min(round_s[n] + least_s(row + min(n + 1, int(part.remaining[row]))) for n in ways)

    rounds = play(part, fastest_lengths(part, round_s))
    assert np.array(round_s)[rounds.drafted].sum() == pytest.approx(least_s(0), rel=1e-12)


def test_a_threshold_that_all_pass_is_the_longest_draft_and_one_that_none_pass_is_plain_decoding(
    offsets: Offsets,
) -> None:
    scores = feature_score(offsets, name="margin")
    np.testing.assert_array_equal(stop_below(scores, 0.0).submitted, MAX_DRAFT)
    nothing = stop_below(scores, 1.1)
    assert (set(nothing.drafted.tolist()), set(nothing.submitted.tolist())) == ({1}, {0})
