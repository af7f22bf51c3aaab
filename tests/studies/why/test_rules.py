"""Every rule speaks on one side of its bound, and not on the other."""

from inspect import signature

import pytest
from msgspec import structs

from specbench_kit.studies.why.evidence import REASONS
from specbench_kit.studies.why.rules import RULES, apply_rules
from specbench_kit.studies.why.summary import Measured, Numbers

Values = dict[str, float]
CASES: dict[str, tuple[Values, list[Values]]] = {
    "broken-drafter": (
        {"acceptance_rate": 0.05, "drafted": 50},
        [{"acceptance_rate": 0.06}, {"drafted": 49}],
    ),
    "flawless-drafter": (
        {"acceptance_rate": 0.99, "drafted": 50, "repeated_share": 0.29},
        [{"acceptance_rate": 0.98}, {"drafted": 49}, {"repeated_share": 0.3}],
    ),
    "looping-text": ({"repeated_share": 0.3}, [{"repeated_share": 0.29}]),
    "pooled-means": (
        {"tokens_per_round": 4.74, "tokens_per_round_by_request": 5.45},
        [{"tokens_per_round_by_request": 5.2}],
    ),
    "selected-positions": (
        {"first_acceptance": 0.762, "later_acceptance": 0.85},
        [{"later_acceptance": 0.8}],
    ),
    "failing-positions": (
        {"first_acceptance": 0.7, "later_acceptance": 0.35},
        [{"later_acceptance": 0.36}, {"first_acceptance": 0.09, "later_acceptance": 0.01}],
    ),
    "tokens-behind-end": ({"unsent_share": 0.05}, [{"unsent_share": 0.04}]),
    "never-drafts": ({"drafted": 0, "rounds": 50}, [{"drafted": 1}, {"rounds": 49}]),
    "costs-when-off": (
        {"undrafted_s": 0.0106, "plain_server_s": 0.01, "undrafted_ratio": 1.06},
        [{"undrafted_ratio": 1.04}, {"undrafted_ratio": 0.9}],
    ),
    "slow-drafter": ({"draft_token_s": 0.005, "plain_s": 0.01}, [{"draft_token_s": 0.0049}]),
    "drafting-dominates": ({"drafting_s": 0.003, "round_s": 0.01}, [{"drafting_s": 0.0029}]),
    "wide-verification": (
        {"verified_token_s": 0.0025, "plain_s": 0.01},
        [{"verified_token_s": 0.0024}],
    ),
    "large-rest": ({"other_s": 0.003, "round_s": 0.01}, [{"other_s": 0.0029}]),
    "below-break-even": (
        {"tokens_per_round": 1.9, "break_even": 2.0, "speedup_at_most": 0.99},
        [{"speedup_at_most": 1.0}, {"tokens_per_round": 2.5}],
    ),
    "other-length": (
        {
            "best_length": 2,
            "best_length_gain": 1.06,
            "drafted_per_round": 5.0,
            "speedup_at_most": 1.2,
        },
        [
            {"best_length_gain": 1.04},
            {"drafted_per_round": 2.2},
            {"best_length": 0, "speedup_at_most": 1.0},
        ],
    ),
    "hurts-together": (
        {
            "concurrency": 16,
            "speedup": 1.4,
            "speedup_together": 0.9,
            "speedup_together_at_most": 0.99,
        },
        [{"speedup_together_at_most": 1.0}, {"speedup": 0.85}],
    ),
}


def found(values: Values, rule: str) -> list[str]:
    numbers = Numbers(**{name: Measured(value, "a test") for name, value in values.items()})
    findings, _ = apply_rules(numbers, REASONS)
    return [finding.sentence for finding in findings if finding.rule == rule]


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_speaks_on_one_side_of_its_bound(rule: str) -> None:
    inside, outside = CASES[rule]
    assert set(inside) == set(RULES[rule].needs)
    assert len(found(inside, rule)) == 1
    for changed in outside:
        assert found({**inside, **changed}, rule) == []


def test_a_finding_names_a_number_with_its_source() -> None:
    numbers = Numbers(
        acceptance_rate=Measured(0.01, "the server's own counters"), drafted=Measured(400, "them")
    )
    findings, left_out = apply_rules(numbers, REASONS)
    (finding,) = findings
    assert (finding.rule, finding.severity, finding.about) == (
        "broken-drafter",
        "fault",
        "acceptance_rate",
    )
    assert (finding.number, finding.source) == (0.01, "the server's own counters")
    assert "1.0% of 400 drafted tokens" in finding.sentence
    assert finding.advice.endswith(".")
    assert {entry.rule for entry in left_out} == RULES.keys() - {"broken-drafter"}


def test_a_rule_that_lacks_a_number_says_which_and_why() -> None:
    _, left_out = apply_rules(Numbers(), {**REASONS, "drafted": "nobody counted"})
    reasons = {entry.rule: entry.because for entry in left_out}
    assert reasons.keys() == RULES.keys()
    assert reasons["never-drafts"] == "nobody counted"
    assert all(reasons.values())
    assert all(entry.looks_for and entry.looks_for[0].islower() for entry in left_out)


def test_rules_need_numbers_that_exist_and_reasons_are_of_all_numbers() -> None:
    names = {field.name for field in structs.fields(Numbers)}
    for rule in RULES.values():
        assert set(signature(rule.check).parameters) <= names
    assert REASONS.keys() == names
