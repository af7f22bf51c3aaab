"""What reports say of a deployment is what its models take."""

import pytest

from specbench_kit.deployments.description import described
from specbench_kit.deployments.loading import bundled, load
from specbench_kit.reports.sections.deployment import description
from specbench_kit.reports.writing.formatting import seconds


@pytest.mark.parametrize("name", sorted(bundled()))
def test_no_forward_that_takes_time_is_said_to_take_none(name: str) -> None:
    deployment = load(name)
    assert deployment is not None
    said = dict(description(described(deployment)))
    assert deployment.verifier.latency.seconds([(5, 512)]) > 0
    assert "no time" not in said["a verification"]
    assert (
        deployment.drafter.latency.seconds([(1, 512)]) == 0
        or "no time" not in said["a draft forward"]
    )


def test_times_of_measured_kernels_are_those_of_the_model() -> None:
    deployment = load("wan")
    assert deployment is not None
    step_s, five_s = (deployment.verifier.latency.seconds([(new, 512)]) for new in (1, 5))
    said = dict(description(described(deployment)))["a verification"]
    assert said.startswith(f"a step {seconds(step_s)}, five tokens {seconds(five_s)}, ")
