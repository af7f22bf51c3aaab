"""What methods are told of the place where they run: a deployment's latencies, or those measured on this machine."""

from pathlib import Path

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import ContextModel
from specbench_kit.deployments.loading import load
from specbench_kit.deployments.placing import environment
from specbench_kit.predictors.library import PairHashes

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

    fields = {"hardware": hardware_text(torch.device("cpu")), "model_hash": model_hash, "alpha_s": alpha_s}
    (home / f"{role}.toml").write_text(PROFILE.format(role=role, **fields))


def test_of_this_machine_are_those_measured_for_the_pair(home: Path) -> None:
    put(home, "drafter", PAIR.draft, 1e-7)
    put(home, "verifier", PAIR.target, 1e-6)
    latencies = environment(PAIR, None, "cpu").latencies()
    assert latencies == (ContextModel(1e-7, 2e-6, 3e-3), ContextModel(1e-6, 2e-6, 3e-3))


def test_without_a_measured_profile_the_command_that_makes_one_is_named(home: Path) -> None:
    with pytest.raises(SkitError, match=r"no latency profile of this pair's drafter .* run skit profile-drafter"):
        environment(PAIR, None, "cpu").latencies()
    put(home, "drafter", PAIR.draft, 1e-7)
    put(home, "verifier", "c" * 64, 1e-6)
    with pytest.raises(SkitError, match="no latency profile of this pair's verifier"):
        environment(PAIR, None, "cpu").latencies()


def test_of_a_deployment_are_its_own() -> None:
    deployment = load("wisp")
    assert deployment is not None
    assert environment(PAIR, deployment).latencies() == (deployment.drafter.latency, deployment.verifier.latency)
