"""Where the threshold rule stops, and how it learns."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from known_drafts import KnownDrafter, at
from numpy.typing import NDArray
from sklearn.metrics import roc_curve
from tiny_models import decode, disturbed, make_requests, make_runner, random_prompts, tiny_llama

from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.drafting.model import ModelDrafter
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.decoding.session import Request, Session
from specbench_kit.methods.spec import parse_method
from specbench_kit.methods.threshold import Schedule, Threshold, best_threshold
from specbench_kit.models.runner import Runner

CAPACITY = 200
Runners = tuple[Runner, Runner]


@pytest.fixture(scope="module")
def runners() -> Runners:
    target = tiny_llama(0)
    return make_runner(target, 8, CAPACITY), make_runner(disturbed(target, 0.005), 8, CAPACITY)


def draft_once(method: Threshold, runner: Runner, sampler: Sampler) -> list[Draft]:
    """The first round's drafts of eight requests."""
    drafter = ModelDrafter(
        runner, sampler, MeasuringClock(torch.device("cpu")), not sampler.greedy, CAPACITY
    )
    sessions = []
    for i, prompt in enumerate(random_prompts([3, 9, 1, 20, 14, 6, 11, 2], 64)):
        request, record = (
            Request(str(i), "test", tuple(prompt), 100),
            RequestRecord(str(i), "test", prompt),
        )
        sessions.append(Session(request, RequestRandom(0, str(i)), frozenset(), 0.0, record))
    drafts = drafter.begin(sessions)
    method.policy().draft(drafter)
    for session in sessions:
        drafter.release(session)
    return drafts


def probabilities(draft: Draft) -> list[float]:
    return [draft.tree.probability(node) for node in range(1, len(draft.tree))]


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=1.0)])
@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.8, 1.0])
def test_a_draft_ends_with_its_first_unsure_token(
    threshold: float, sampler: Sampler, runners: Runners
) -> None:
    drafts = draft_once(Threshold(threshold, max_draft=6), runners[1], sampler)
    for draft in drafts:
        *before, last = probabilities(draft)
        assert all(probability >= threshold for probability in before)
        assert last < threshold or len(before) == 5


def test_drafts_of_one_batch_end_at_different_places(runners: Runners) -> None:
    longest = draft_once(Threshold(0.0, max_draft=6), runners[1], Sampler())
    assert {len(draft.tree) - 1 for draft in longest} == {6}
    median = float(
        np.median([probability for draft in longest for probability in probabilities(draft)])
    )
    drafts = draft_once(Threshold(median, max_draft=6), runners[1], Sampler())
    assert len({len(draft.tree) for draft in drafts}) > 1
    assert {len(draft.tree) - 1 for draft in draft_once(Threshold(1.0), runners[1], Sampler())} == {
        1
    }


@pytest.mark.parametrize("threshold", [0.0, 0.55, 0.75, 0.99])
def test_a_batch_stops_together(threshold: float, runners: Runners) -> None:
    drafts = draft_once(Threshold(threshold, max_draft=6, unit="batch"), runners[1], Sampler())
    (length,) = {len(draft.tree) - 1 for draft in drafts}
    means = np.mean([probabilities(draft) for draft in drafts], axis=0)
    assert (means[:-1] >= threshold).all()
    assert means[-1] < threshold or length == 6


def test_any_sure_request_takes_the_whole_batch_further() -> None:
    """The second request is sure of two tokens at a threshold of .6, so that both requests get a third one.

    That third one is the first that neither is sure of: it is sent, as every token at which a draft ends, and the
    first request's sureness comes too late.
    """
    rows = [[0.5, 0.9, 0.4, 0.9], [0.7, 0.6, 0.5, 0.9]]
    drafter = KnownDrafter([[at(probability=value) for value in row] for row in rows])
    Threshold(0.6, unit="any").policy().draft(drafter)
    assert [draft.tree.last for draft in drafter.drafts] == [3, 3]
    drafter = KnownDrafter([[at(probability=value) for value in row] for row in rows])
    Threshold(0.6).policy().draft(drafter)
    assert [draft.tree.last for draft in drafter.drafts] == [1, 3]


def submitted(records: Sequence[RequestRecord]) -> list[list[int]]:
    return [[step.submitted for step in record.rounds] for record in records]


def test_the_constant_schedule_keeps_the_longest_draft(runners: Runners) -> None:
    records = decode(parse_method("threshold:threshold=0,max_draft=3"), runners, requests())
    assert {length for lengths in submitted(list(records.values())) for length in lengths} == {3}


def requests() -> list[Request]:
    return make_requests(random_prompts([3, 9, 1], 64), 60)


@pytest.mark.parametrize("schedule", ["heuristic", "heuristic-transient"])
def test_the_heuristic_schedules(schedule: str, runners: Runners) -> None:
    """Two more after a round that accepted all, one less after any other; carried over, or per request."""
    method = parse_method(f"threshold:threshold=0,max_draft=3,schedule={schedule}")
    records = list(decode(method, runners, requests()).values())
    limit, probabilities_seen = 3, set()
    for record in records:
        limit = 3 if schedule == "heuristic-transient" else limit
        for step in record.rounds:
            assert step.submitted == limit
            probabilities_seen.add(step.accepted == step.submitted)
            limit = limit + 2 if step.accepted == step.submitted else max(1, limit - 1)
    assert probabilities_seen == {True, False}
    starts = [lengths[0] for lengths in submitted(records)]
    assert (starts == [3, 3, 3]) == (schedule == "heuristic-transient")


@pytest.mark.parametrize(
    ("schedule", "lengths"),
    [
        ("heuristic", [[3, 3, 3], [5, 5, 5], [4, 4, 4]]),
        ("heuristic-transient", [[3, 3, 3], [5, 5, 5], [7, 4, 7]]),
    ],
)
def test_a_batch_moves_the_limit_once_a_round(schedule: Schedule, lengths: list[list[int]]) -> None:
    """All is accepted in the first round, and all but a draft's last token in the second: 3 + 2, then 5 - 1."""
    policy = Threshold(0.0, max_draft=3, schedule=schedule).policy()
    drafted = []
    for missing in (0, 1, 0):
        drafter = KnownDrafter([[at()] * 30] * 3)
        policy.draft(drafter)  # type: ignore[arg-type]
        chosen = policy.choose(drafter.drafts)
        drafted.append([len(nodes) for nodes in chosen])
        accepted = [len(nodes) - missing * (row == 1) for row, nodes in enumerate(chosen)]
        policy.observe(drafter.verdicts(chosen, accepted))
    assert drafted == lengths


def test_thresholds_adapt_per_request(runners: Runners) -> None:
    """A request's drafts do not depend on what other requests taught."""
    method = parse_method("threshold:adaptive=true,threshold=0.9,max_draft=6")
    together = decode(method, runners, requests())
    fixed = decode(parse_method("threshold:threshold=0.9,max_draft=6"), runners, requests())
    assert submitted(list(together.values())) != submitted(list(fixed.values()))
    for request in requests():
        alone = decode(method, runners, [request])
        assert submitted(list(alone.values())) == submitted([together[request.id]])


def reference(values: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    fpr, tpr, thresholds = roc_curve(labels, values)
    return float(thresholds[np.argmin(fpr + 3 * (1 - tpr))])


@pytest.mark.parametrize("decimals", [1, 2, 9])
def test_best_threshold_equals_scikit_learns(decimals: int) -> None:
    """Random histories have many ties or none; where two thresholds cost the same, either will do."""
    dice = np.random.default_rng(decimals)
    for _ in range(200):
        values = dice.random(dice.integers(6, 60)).round(decimals)
        labels = dice.random(len(values)) < np.where(dice.random() < 0.5, values, 0.6)
        if labels.all() or not labels.any():
            continue
        best, expected_best = (
            best_threshold(values.tolist(), labels.tolist()),
            reference(values, labels),
        )
        assert best in values
        assert cost(best, values, labels) == pytest.approx(cost(expected_best, values, labels))


def cost(threshold: float, values: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    accepted_flags = values >= threshold
    return float(accepted_flags[~labels].mean() + 3 * (~accepted_flags)[labels].mean())


def test_best_threshold_separates_what_can_be_separated() -> None:
    assert (
        best_threshold([0.9, 0.2, 0.8, 0.3, 0.7, 0.1], [True, False, True, False, True, False])
        == 0.7
    )
