"""The digest by which a predictor knows a deployment again."""

from dataclasses import replace
from pathlib import Path

import pytest

from specbench_kit.deployments.description import digest
from specbench_kit.deployments.loading import bundled
from specbench_kit.predictors.artefact import load
from specbench_kit.predictors.library import BUNDLED

PREDICTORS = sorted(path.parent for path in BUNDLED.glob("*/predictor.json"))


@pytest.mark.parametrize("name", ["specedge", "wan", "wisp"])
@pytest.mark.parametrize("folder", PREDICTORS, ids=lambda folder: folder.name)
def test_bundled_predictors_were_tuned_for_the_deployment_as_it_is(folder: Path, name: str) -> None:
    tuned = [point.digest for point in load(folder).tuned if point.deployment == name]
    assert tuned == [digest(bundled()[name].build())] * 4


def test_whatever_time_depends_on_changes_it_and_a_description_does_not() -> None:
    deployment = bundled()["specedge"].build()
    slower = replace(deployment, link=replace(deployment.link, rtt_s=deployment.link.rtt_s + 1e-6))
    changed = replace(deployment, placement="server")
    deciding = replace(deployment, predictor_s=1e-6)
    assert len({digest(variant) for variant in (deployment, slower, changed, deciding)}) == 4
    assert digest(replace(deployment, description="other", name="other")) == digest(deployment)
