"""What methods are told of the place where they run: a deployment's latencies, or those measured on this machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import ContextModel
from specbench_kit.deployments.base import RECORDED, Deployment, Endpoint
from specbench_kit.deployments.description import digest
from specbench_kit.deployments.loading import load
from specbench_kit.deployments.placing import environment
from specbench_kit.predictors.library import PairHashes
from specbench_kit.predictors.thresholds import LOCAL_DEPLOYMENT, DeploymentKey
from specbench_kit.runs.deployment import Link

FORM = ContextModel(1e-7, 2e-6, 3e-3)
PAIR = PairHashes(target="a" * 64, draft="b" * 64)
PROFILE = """
name = "{role}"
role = "{role}"
device = "cpu"
model = "tiny"
dtype = "float32"
source = "measured"
date = "2026-01-01"
hardware = "{hardware}"
model_hash = "{model_hash}"

[coefficients]
form = "context"
alpha_s = {alpha_s}
gamma_s = 2e-6
delta_s = 3e-3
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKIT_HOME", str(tmp_path))
    (tmp_path / "profiles").mkdir()
    return tmp_path / "profiles"


def put(home: Path, role: str, model_hash: str, alpha_s: float) -> None:
    import torch

    from specbench_kit.profilers.measurement import hardware_text

    fields = {
        "hardware": hardware_text(torch.device("cpu")),
        "model_hash": model_hash,
        "alpha_s": alpha_s,
    }
    (home / f"{role}.toml").write_text(PROFILE.format(role=role, **fields))


def test_of_this_machine_are_those_measured_for_the_pair(home: Path) -> None:
    put(home, "drafter", PAIR.draft, 1e-7)
    put(home, "verifier", PAIR.target, 1e-6)
    latencies = environment(PAIR, None, "cpu").latencies()
    assert latencies == (ContextModel(1e-7, 2e-6, 3e-3), ContextModel(1e-6, 2e-6, 3e-3), None)


def test_without_a_measured_profile_the_command_that_makes_one_is_named(home: Path) -> None:
    with pytest.raises(
        SkitError, match=r"no latency profile of this pair's drafter .* run skit profile-drafter"
    ):
        environment(PAIR, None, "cpu").latencies()
    put(home, "drafter", PAIR.draft, 1e-7)
    put(home, "verifier", "c" * 64, 1e-6)
    with pytest.raises(SkitError, match="no latency profile of this pair's verifier"):
        environment(PAIR, None, "cpu").latencies()


def test_of_a_deployment_are_its_own() -> None:
    deployment = load("wisp")
    assert deployment is not None
    latencies = environment(PAIR, deployment).latencies()
    assert latencies[:2] == (deployment.drafter.latency, deployment.verifier.latency)
    assert latencies.link is not None
    assert latencies.link.seconds(4, 2) == pytest.approx(0.02)  # its bandwidth is unlimited


def test_the_latency_of_the_target_is_known_where_it_was_measured_or_modelled(home: Path) -> None:
    assert environment(PAIR, None, "cpu").verification() is None
    put(home, "verifier", PAIR.target, 1e-6)
    assert environment(PAIR, None, "cpu").verification() == ContextModel(1e-6, 2e-6, 3e-3)
    deployment = Deployment(
        "there", Endpoint("d", FORM), Endpoint("v", ContextModel(1e-5, 0, 0)), Link()
    )
    assert environment(PAIR, deployment, "cpu").verification() == ContextModel(1e-5, 0, 0)


def test_time_is_modelled_under_a_deployment_whose_name_and_numbers_are_the_key() -> None:
    """The machine that recorded a trace counts as this one, and only drafts that cross the link have its round trip."""
    here = environment(PAIR, None)
    assert (here.modelled, here.deployment, here.link_s) == (False, LOCAL_DEPLOYMENT, 0)
    far = Deployment("far", Endpoint("d", FORM), Endpoint("v", FORM), Link(rtt_s=0.1))
    there = environment(PAIR, far)
    assert (there.modelled, there.deployment, there.link_s) == (
        True,
        DeploymentKey("far", digest(far)),
        0.1,
    )
    assert environment(PAIR, replace(far, placement="server")).link_s == 0
    recorded = environment(PAIR, replace(far, name=RECORDED))
    assert (recorded.modelled, recorded.deployment) == (True, LOCAL_DEPLOYMENT)


def test_the_link_is_in_the_latencies_where_drafts_cross_it() -> None:
    link = Link(
        rtt_s=0.1, jitter_s=0.01, up_bytes_per_s=100.0, down_bytes_per_s=200.0, draft_bytes=16.0
    )
    near = Deployment("near", Endpoint("d", FORM), Endpoint("v", FORM), link, placement="server")
    assert environment(PAIR, near).latencies().link is None
    assert not environment(PAIR, near).server_decodes
    far = environment(PAIR, replace(near, placement="edge"))
    assert far.server_decodes
    costs = far.latencies().link
    assert costs is not None
    # Three drafted tokens of 4 + 16 bytes at 100 bytes per second, and two committed ones of 4 bytes at 200.
    assert costs.seconds(3, 2) == pytest.approx(0.1 + 0.6 + 0.04)
    # Of three uniform jitters the largest is 2/4 of 10 ms above the mean on average, on the way up and down.
    assert costs.seconds(3, 2, requests=3) == pytest.approx(0.1 + 0.6 + 0.04 + 2 * 0.005)


def test_the_expected_round_trip_has_the_lost_messages() -> None:
    """A message that is lost with probability 1/5 is sent 1.25 times on average, and each failure costs 40 ms."""
    link = Link(rtt_s=0.1, loss=0.2, retry_s=0.04)
    costs = (
        environment(PAIR, Deployment("far", Endpoint("d", FORM), Endpoint("v", FORM), link))
        .latencies()
        .link
    )
    assert costs is not None
    assert costs.rtt_s == pytest.approx(0.1 + 2 * 0.25 * 0.04)
