"""A deployment survives the way into run.json and back."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from environments import DEPLOYMENT

from specbench_kit.core.typed_json import convert
from specbench_kit.decoding.latency import TableModel
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.deployments.description import describe, described, restore
from specbench_kit.deployments.loading import bundled
from specbench_kit.runs.deployment import DeploymentDescription, Link


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


OF_0_2 = sorted(
    path
    for path in (Path(__file__).parents[1] / "folders_of_0_2").glob("*/run.json")
    if json.loads(path.read_text()).get("deployment")
)


@pytest.mark.parametrize("path", OF_0_2, ids=lambda path: path.parent.name)
def test_a_deployment_of_an_older_version_is_written_as_it_was_to_the_byte(path: Path) -> None:
    content = json.loads(path.read_text())["deployment"]
    assert json.dumps(describe(restore(content))) == json.dumps(content)


@pytest.mark.parametrize("colocated", [None, DEPLOYMENT.drafter])
def test_run_json_has_every_field_of_a_deployment_in_the_order_of_its_type(
    colocated: Endpoint | None,
) -> None:
    deployment = replace(DEPLOYMENT, colocated=colocated)
    content = describe(deployment)
    names = [field.name for field in fields(Deployment)]
    assert [*content] == (names if colocated else [name for name in names if name != "colocated"])
    assert [*content["link"]] == [field.name for field in fields(Link)]
    # What only derived latencies have is left out where there is none.
    of_derived = ["range", "speculating", "speculating_range"]
    assert [*content["drafter"], *of_derived] == [field.name for field in fields(Endpoint)]
    assert described(deployment) == convert(DeploymentDescription, json.loads(json.dumps(content)))
