"""Hand-overs between the stages of a pipeline: read from a deployment's file, and paid for by a pass."""

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.base import HandOver
from specbench_kit.deployments.description import describe
from specbench_kit.deployments.loading import load

SET = ["verifier.stages=4", "verifier.hand_over.latency_s=0.001", "verifier.hand_over.per_pass=3"]


def test_fields_of_the_hand_over_are_replaced_like_others() -> None:
    deployment = load("specpipe-10gbe", SET)
    assert deployment is not None
    assert deployment.verifier.hand_over == HandOver(0.001, bytes_per_token=16384, bytes_per_s=1.25e9, per_pass=3)
    assert describe(deployment)["verifier"]["hand_over"]["per_pass"] == 3


def test_a_pass_pays_for_its_hand_overs_and_a_step_for_one() -> None:
    verifier = load("specpipe-10gbe", SET).verifier  # type: ignore[union-attr]
    one_s = 0.001 + 7 * 16384 / 1.25e9
    assert verifier.hand_over.seconds(7) == pytest.approx(one_s)
    rows = [(5, 100), (2, 30)]
    assert verifier.pass_s(rows) == pytest.approx(verifier.latency.seconds(rows) + 3 * one_s)


def test_without_any_a_pass_takes_the_latency() -> None:
    verifier = load("specpipe").verifier  # type: ignore[union-attr]
    assert verifier.hand_over.seconds(1000) == 0
    assert verifier.pass_s([(5, 100)]) == verifier.latency.seconds([(5, 100)])
    assert describe(load("specpipe"))["verifier"]["hand_over"]["bytes_per_s"] is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("verifier.hand_over.per_pass=-1", "per_pass must be a whole number >= 0, not -1"),
        ("verifier.hand_over.latency_s=-1", "latency_s"),
        ("verifier.hand_over.latency=1", "latency"),
        ("drafter.hand_over.latency_s=1", "hand_over"),
    ],
)
def test_a_bad_field_is_named(field: str, problem: str) -> None:
    with pytest.raises(SkitError, match=problem):
        load("specpipe", [field])
