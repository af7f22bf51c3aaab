"""A deployment survives the way into run.json and back."""

import json

import pytest

from specbench_kit.decoding.latency import TableModel
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.deployments.description import describe
from specbench_kit.deployments.loading import bundled
from specbench_kit.deployments.restoring import restore


@pytest.mark.parametrize("name", bundled())
def test_every_bundled_deployment_is_restored(name: str) -> None:
    deployment = bundled()[name].build()
    assert restore(json.loads(json.dumps(describe(deployment)))) == deployment


def test_the_machine_that_recorded_a_trace_is_restored() -> None:
    table = TableModel((0.1, 0.2))
    deployment = Deployment(
        "recorded", Endpoint("here", table), Endpoint("here", table), cached_prompts=True
    )
    assert restore(json.loads(json.dumps(describe(deployment)))) == deployment
