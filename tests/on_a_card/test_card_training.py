"""Trainings on an emulated card, and benchmarks with what they made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import TinyPair, read_object

Command = Callable[..., dict[str, Any]]
SMALL = [
    "--limit",
    12,
    "--max-new-tokens",
    8,
    "--epochs",
    1,
    "--vocabulary",
    200,
    "--batch-size",
    4,
]


def assert_lossless(document: dict[str, Any]) -> None:
    for folder in map(Path, document["run_dirs"]):
        lossless = read_object(folder / "summary.json").get("lossless") or {}
        assert lossless.get("errors", 0) == 0, folder.name


def test_a_head_is_trained_and_drafts(
    command: Command, tiny: TinyPair, prompts: Path, tmp_path: Path
) -> None:
    trained = command("train-head", "--target", tiny.target, *SMALL)
    assert trained["summary"]["vocabulary"] == 200
    shared = ["--dataset", prompts, "--max-new-tokens", 8, "--out", tmp_path]
    for batch_size, temperature in ((1, 0), (2, 0.7)):
        options = ["--batch-size", batch_size, "--temperature", temperature]
        assert_lossless(
            command("bench", "--target", tiny.target, *shared, "--method", "eagle:k=3", *options)
        )


@pytest.mark.nightly  # a head is trained by the same loop
def test_a_draft_is_trained_and_drafts(
    command: Command, tiny: TinyPair, prompts: Path, tmp_path: Path
) -> None:
    command(
        "train-draft",
        "--target",
        tiny.target,
        *SMALL,
        "--layers",
        "0",
        "--save-to",
        tmp_path / "draft",
    )
    pair = ["--target", tiny.target, "--draft", tmp_path / "draft"]
    shared = ["--dataset", prompts, "--max-new-tokens", 8, "--out", tmp_path / "runs"]
    assert_lossless(command("bench", *pair, *shared, "--method", "fixed-k"))


@pytest.mark.nightly  # recording on a card is tried in test_card_commands.py
def test_a_predictor_is_trained(command: Command, tiny: TinyPair, tmp_path: Path) -> None:
    families = ["--families", "logistic", "--trials", 1, "--repeats", 1]
    prompts = ["--limit", 8, "--max-new-tokens", 8, "--max-draft", 3]
    document = command("train-predictor", *tiny.options, *families, *prompts, "--out", tmp_path)
    assert document["run_dirs"]
