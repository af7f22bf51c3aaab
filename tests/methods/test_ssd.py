"""What ssd drafts while the target verifies, and what becomes of it."""

from typing import Any

import pytest
from tiny_models import decode, disturbed, make_requests, make_runner, random_prompts, tiny_llama

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RoundRecord
from specbench_kit.methods.spec import parse_method
from specbench_kit.methods.ssd import Ssd, _SsdPolicy, geometric_shares
from specbench_kit.models.runner import Runner

Runners = tuple[Runner, Runner]


@pytest.fixture(scope="module")
def runners() -> Runners:
    target = tiny_llama(0)
    return make_runner(target, 4, 200), make_runner(disturbed(target, 0.01), 4, 200)


def rounds(spec: str, runners: Runners, **options: Any) -> list[RoundRecord]:
    records = decode(
        parse_method(spec), runners, make_requests(random_prompts([5, 9, 3], 64), 40), **options
    )
    return [step for record in records.values() for step in record.rounds]


def test_guesses_go_to_the_likelier_outcomes() -> None:
    """Acceptance .8, k = 2, six guesses: chances .2, .16 and .64."""
    shares = geometric_shares(0.8, 2, 6, 1.0)
    assert shares == [2, 1, 3]
    chances = (0.2, 0.16, 0.64)
    hit = [
        sum(p * (1 - 1 / n) for p, n in zip(chances, counts, strict=True))
        for counts in (shares, [2, 2, 2])
    ]
    assert hit == pytest.approx([0.526667, 0.5])
    assert geometric_shares(1.0, 2, 6, 1.0) == [1, 1, 6]


def test_it_drafts_ahead_and_keeps_what_came_true(runners: Runners) -> None:
    outcomes_found = rounds("ssd:k=3,guesses=2", runners)
    hits = [step for step in outcomes_found if step.aligned]
    assert hits
    assert len(hits) < len(outcomes_found)
    assert {step.submitted for step in outcomes_found} == {3}
    assert any(step.proactive for step in outcomes_found)
    assert any(step.reused for step in outcomes_found)


def test_more_guesses_come_true_more_often(runners: Runners) -> None:
    shares = []
    for guesses in (1, 6):
        outcomes_found = rounds(f"ssd:k=2,guesses={guesses}", runners)
        shares.append(sum(step.aligned for step in outcomes_found) / len(outcomes_found))
    assert shares[0] < shares[1]


def test_without_a_backup_a_miss_is_a_plain_step(runners: Runners) -> None:
    outcomes_found = rounds("ssd:k=3,guesses=1,backup=none", runners)
    assert {step.submitted for step in outcomes_found} == {0, 3}


def test_it_shares_guesses_out_once_it_has_seen_enough() -> None:
    policy = _SsdPolicy(Ssd(k=2, guesses=2, allocation="geometric"))
    policy.accepted, policy.rejected = 8, 2
    assert policy._guess_counts(2) == [2, 2, 2]
    policy.rounds = 50
    assert policy._guess_counts(2) == [2, 1, 3]


@pytest.mark.parametrize(
    ("spec", "wrong"), [("ssd:k=0", "ssd: k must be at least 1"), ("ssd:r=0", "ssd: r must be ab")]
)
def test_options_that_make_no_sense(spec: str, wrong: str) -> None:
    with pytest.raises(SkitError, match=wrong):
        parse_method(spec)
