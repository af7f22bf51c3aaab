"""What a round is charged in training, and what is tried before a rule is chosen."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from specbench_kit.predictors.scoring import candidate_thresholds
from specbench_kit.predictors.thresholds import NEVER
from specbench_kit.studies.training.evaluation import to_records
from specbench_kit.studies.training.offsets import Offsets
from specbench_kit.studies.training.operating_point import OperatingPoint
from specbench_kit.studies.training.rounds import PlayedRounds
from specbench_kit.studies.training.timing import Timing

LABELS, SCORES = np.array([False, True]), np.array([0.2, 0.8])


def offsets(count: int) -> Offsets:
    """One request with so many tokens, of whose drafts nothing is right."""
    zeros, statistics = np.zeros(count, int), np.zeros((count, 3, 5), np.float32)
    return Offsets(
        zeros,
        zeros,
        10 + np.arange(count),
        count - np.arange(count),
        zeros,
        zeros + 3,
        statistics,
        zeros + 3,
    )


def test_a_round_pays_for_what_it_drafted_and_for_the_way_of_what_it_sent() -> None:
    """Three drafted and judged, two of them sent; then two drafted, one sent."""
    columns = ([0, 2], [3, 2], [2, 1], [1, 0], [2, 1])
    rounds = PlayedRounds(*(np.array(column) for column in columns))
    timing = Timing(0.010, (0.100, 0.110, 0.120, 0.130), 0.001, link_s=(0.050, 0.051, 0.052, 0.053))
    (record,) = to_records(offsets(3), rounds, timing, policy_s=0.004)
    first, second = record.rounds
    assert (first.draft_s, first.policy_s, first.link_s, first.verify_s) == pytest.approx(
        (0.03, 0.012, 0.052, 0.12)
    )
    assert (second.draft_s, second.policy_s, second.link_s, second.verify_s) == pytest.approx(
        (0.02, 0.008, 0.051, 0.11)
    )
    assert timing.seconds(rounds, 0.004) == pytest.approx(
        [0.03 + 0.012 + 0.052 + 0.12, 0.02 + 0.008 + 0.051 + 0.11]
    )
    near = to_records(offsets(3), rounds, timing.without_link, policy_s=0.0)[0].rounds[0]
    assert (near.policy_s, near.link_s) == (0.0, 0.0)


def test_every_longest_draft_is_tried_the_recorded_one_too() -> None:
    """The longest where length makes faster, and the shortest where it makes slower or no difference."""
    for per_token, chosen in ((1.0, 6), (-1.0, 1), (0.0, 1)):
        speeds = partial(_by_length, per_token=per_token)
        assert OperatingPoint().choose(LABELS, SCORES, 6, speeds) == (0.0, chosen)


def _by_length(thresholds: Sequence[float], longest: int, *, per_token: float) -> list[float]:
    """Tokens per second, the fewer the higher the threshold."""
    return [10 - threshold + per_token * longest for threshold in thresholds]


def test_candidates_lie_just_below_the_scores_that_they_let_pass() -> None:
    """Quarters of four scores, each threshold midway to the next lower score."""
    thresholds = candidate_thresholds(np.array([0.4, 0.1, 0.3, 0.2]), count=4)
    assert thresholds == pytest.approx(
        [0.0, (0.1 + 0.2) / 2, (0.2 + 0.3) / 2, (0.3 + 0.4) / 2, NEVER]
    )
