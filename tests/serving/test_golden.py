"""Published mean acceptance lengths as a source of acceptance, and the files that hold them."""

from pathlib import Path

import numpy as np
import pytest
from command_line import skit_here
from report_builders import serving_run

from specbench_kit.core.errors import SkitError
from specbench_kit.serving.acceptance_spec import parse_rates
from specbench_kit.serving.golden import golden_curves, golden_length, read_curve
from specbench_kit.serving.round_sources import TypicalRound
from specbench_kit.studies.serving.wording import acceptance_cautions, is_same_model

CURVES = golden_curves()
THEIR_FORM = """
# dataset: coding | temperature: 1.0
_metadata:
  draft-model: some/head
some-model:
  thinking_on:
    1: 1.50
    3: 2.25
"""


def _typical(acceptance: str) -> TypicalRound:
    rates = parse_rates(acceptance)
    assert rates is not None
    return rates.source().typical


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("shape", ["iid", "even"])
def test_rounds_have_the_published_mean(name: str, shape: str) -> None:
    for drafted, length in CURVES[name].thinking_on.items():
        typical = _typical(f"golden:{name},k={drafted},shape={shape}")
        assert typical.committed == pytest.approx(length, abs=1e-6)
        assert typical.submitted == drafted


def test_even_rounds_accept_as_many_tokens_as_the_mean_or_one_more() -> None:
    """2.83 tokens a round at k = 3: one token is always accepted, and a second in 83 of 100 rounds."""
    rates = parse_rates("golden:minimax-m3-eagle3,k=3,shape=even")
    assert rates is not None
    rounds, _ = rates.source().rounds(
        np.zeros(1000, dtype=np.int64), (np.arange(1000) + 0.5) / 1000
    )
    assert dict(zip(*np.unique(rounds.accepted, return_counts=True), strict=True)) == {
        1: 170,
        2: 830,
    }


def test_modes_and_files(tmp_path: Path) -> None:
    assert golden_length("kimi-k2.5-eagle3", 4, thinking=True) == 3.24
    assert golden_length("kimi-k2.5-eagle3", 4, thinking=False) == 3.06
    file = tmp_path / "own.yaml"
    file.write_text(THEIR_FORM)
    assert read_curve(file).thinking_on == {1: 1.5, 3: 2.25}
    assert golden_length(str(file), 3, thinking=True) == 2.25


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("golden:minimax-m3,k=4", "golden: no curve 'minimax-m3' "),
        (
            "golden:glm-5.2-mtp,k=9",
            "golden: 'glm-5.2-mtp' has no acceptance length for k=9 with thinking on; known: k=1",
        ),
        ("golden:glm-5.2-mtp,thinking=false", "for k=4 with thinking off; known: none"),
        ("golden:nowhere.yaml", "golden: cannot read 'nowhere.yaml': No such file or directory"),
        ("golden:k=4", "golden: option 'name' has to be given"),
    ],
)
def test_what_a_curve_does_not_have_is_one_line(text: str, message: str) -> None:
    with pytest.raises(SkitError) as refused:
        _typical(text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "- 1",
        "a: 1",
        "a: {thinking_on: [1, 2]}",
        "a: {}\nb: {}",
        "a: {thinking_on: {1: x}}",
        "a: [",
        "a: !!python/x 1",
    ],
)
def test_other_files_are_refused_in_one_line(content: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(content)
    with pytest.raises(
        SkitError, match=r"^golden: '\S+' is not one model with acceptance lengths [^\n]+$"
    ):
        read_curve(file)


def test_lengths_that_cannot_be_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("model: {thinking_on: {2: 3.5}}")
    with pytest.raises(
        SkitError, match=r"an acceptance length of 3\.5 for k=2; it must lie in 1\.\.3"
    ):
        golden_length(str(file), 2, thinking=True)


def test_a_report_says_that_a_mean_ranks_no_policies() -> None:
    drafting = {"method": "fixed-k", "typical": {"submitted": 2, "longest": 2}}
    stated = [
        {"label": "a", "acceptance": "golden:glm-5.2-mtp"} | drafting,
        {"label": "b", "acceptance": None} | drafting,
    ]
    (line,) = acceptance_cautions(serving_run(*stated))
    assert line.startswith("GOLDEN ACCEPTANCE: a: ")
    assert "cannot rank policies" in line
    assert acceptance_cautions(serving_run(*stated[1:])) == []


def test_a_report_says_that_one_server_mixes_prompts_and_another_does_not() -> None:
    plain = {"label": "plain", "system": "centralized", "scheduler": "prefill-first"}
    drafts = {"label": "drafts", "system": "server", "scheduler": "chunked:tokens=2048"}
    (line,) = acceptance_cautions(serving_run(plain, drafts))
    assert line.startswith(
        "UNLIKE PROMPTS: drafts computes prompts beside running requests, and in plain"
    )
    assert acceptance_cautions(serving_run(plain | {"scheduler": "chunked"}, drafts)) == []
    # Devices that draft send their prompts apart from any running request.
    edge = {"label": "edge", "system": "wisp", "scheduler": "fcfs"}
    assert acceptance_cautions(serving_run(edge, drafts)) == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Qwen/Qwen3-32B-AWQ", "qwen3-32b", True),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b", True),
        ("Qwen/Qwen2.5-Coder-1.5B-Instruct", "qwen3-32b", False),
        ("GLM 5.2 in FP8 with its MTP layer", "qwen3-32b", False),
        ("GLM 5.2 in FP8 with its MTP layer", "glm-5.2", True),
    ],
)
def test_models_are_told_apart_by_their_names(one: str, other: str, same: bool) -> None:
    assert is_same_model(one, other) == is_same_model(other, one) == same


@pytest.mark.parametrize(
    ("acceptance", "model"),
    [
        ("golden:glm-5.2-mtp,k=4", "GLM 5.2 in FP8 with its MTP layer"),
        ("qwen2.5-coder", "qwen2.5-coder"),
        ("iid:alpha=0.8", ""),
    ],
)
def test_the_acceptance_of_another_model_is_named(
    acceptance: str, model: str, tmp_path: Path
) -> None:
    lengths = () if "coder" in acceptance else ("--prompt-tokens", "50", "--output-tokens", "20")
    few = ("--duration", "60", "--warm-up", "2", "--seeds", "1", "--devices", "2")
    done = skit_here(
        "simulate",
        "--acceptance",
        acceptance,
        "--method",
        "fixed-k",
        *few,
        *lengths,
        "--out",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (report,) = tmp_path.glob("*/report.md")
    text = report.read_text(encoding="utf-8")
    assert ("ANOTHER MODEL'S ACCEPTANCE" in text) == bool(model)
    assert f"{model}, and times are those of qwen3-32b" in text or not model
