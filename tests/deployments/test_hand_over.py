"""Hand-overs between the stages of a pipeline: read from a deployment's file, and paid for by a pass."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.description import describe
from specbench_kit.deployments.in_stages import in_stages, require_even
from specbench_kit.deployments.loading import load
from specbench_kit.profilers.architectures import Architecture
from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.derived_run import interconnect_of
from specbench_kit.profilers.devices import find_device
from specbench_kit.runs.deployment import HandOver

SET = ["verifier.stages=4", "verifier.hand_over.latency_s=0.001", "verifier.hand_over.per_pass=3"]


def test_fields_of_the_hand_over_are_replaced_like_others() -> None:
    deployment = load("specpipe-10gbe", SET)
    assert deployment is not None
    assert deployment.verifier.hand_over == HandOver(
        0.001, bytes_per_token=16384, bytes_per_s=1.25e9, per_pass=3
    )
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


SHAPES = Architecture("llama", 1024, 12, 8, 2, 128, 4096, 32000, tied=False, max_positions=4096)


def test_stages_hand_the_hidden_states_of_each_token_over() -> None:
    """Four stages hand 1024 values of two bytes over three times, and draw four times the power of one."""
    deployment = load("wisp")
    assert deployment is not None
    card = find_device("h100")
    verifier = replace(deployment.verifier, power_w=300.0)
    profile = Profile("p", "verifier", card.name, "m", "bfloat16", "derived", "interaction", {})
    assert in_stages(verifier, profile, SHAPES, card, 1) is verifier
    staged = in_stages(verifier, profile, SHAPES, card, 4)
    links = interconnect_of(card)
    assert staged == replace(
        verifier,
        device=f"4 stages of {verifier.device}",
        stages=4,
        hand_over=HandOver(
            links.latency_s, bytes_per_token=2048.0, bytes_per_s=links.bytes_per_s, per_pass=3
        ),
        power_w=1200.0,
    )


@pytest.mark.parametrize(
    ("members", "stages", "problem"),
    [
        (8, 4, None),
        (6, 4, "v: 6 cards cannot be divided into 4 equal stages"),
        (10, 5, "v: 5 stages cannot share 12 layers evenly"),
        (6, 2, "v: 3 cards cannot share 8 heads evenly"),
    ],
)
def test_stages_share_a_model_evenly_or_not_at_all(
    members: int, stages: int, problem: str | None
) -> None:
    """A model of 12 layers and 8 heads."""
    with pytest.raises(SkitError, match=problem) if problem else nullcontext():
        require_even(SHAPES, members, stages, "v")


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
