"""The stages of a pipeline on two cards, and what a stage that ends leaves behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import PATIENCE_S
from tiny_models import tiny_llama

from specbench_kit.decoding.pipeline.flight import Level
from specbench_kit.decoding.processes.group import meeting_point
from specbench_kit.decoding.processes.worker import CarriedLevel, Stage
from specbench_kit.models.catalogue import ModelSource
from specbench_kit.models.pair import load_model

TOKENS = [1, 9, 7, 30, 12]


def stage(folder: Path, number: int, card: str) -> Stage:
    """Load a stage as its process does: the shell of the model, cut, and then moved to its card."""
    model = load_model(
        ModelSource(str(folder), "tiny", local_only=True), device="cpu", dtype="float32"
    ).model
    made = Stage(model, number, 2, torch.device(card), slots=1, capacity=32, vocabulary=64)
    made.admit(0)
    return made


@pytest.mark.usefixtures("machine")
def test_two_stages_on_two_cards_compute_what_the_model_does(tmp_path: Path) -> None:
    whole = tiny_llama(0, num_hidden_layers=3)
    whole.save_pretrained(tmp_path)
    chain = Level(ids=[0, 1], tokens=TOKENS[3:], parents=[-1, 0], prefix=TOKENS[:3])
    first, last = stage(tmp_path, 1, "cuda:0"), stage(tmp_path, 2, "cuda:1")
    with torch.inference_mode():
        first.work({0: CarriedLevel(chain)})
        states = first.output[0].states
        assert states is not None
        assert str(states.device) == "cuda:0"
        last.work({0: CarriedLevel(chain, states.to("cuda:1"))})
        logits = last.output[0].states
        assert logits is not None
        assert str(logits.device) == "cuda:1"
        expected = whole(torch.tensor([TOKENS])).logits[0, 3:, :64]
    torch.testing.assert_close(logits.cpu(), expected)


@pytest.mark.nightly  # tests/decoding/test_pipeline_processes.py has stages that fail
def test_a_stage_that_raises_ends_with_its_error(tmp_path: Path) -> None:
    """A thread waits at its standard input, whose lock must not keep Python from ending."""
    store = meeting_point(world=2)
    worker = [
        sys.executable,
        "-m",
        "specbench_kit.decoding.processes.worker",
        str(store.port),
        "no-device",
    ]
    ranks = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    process = subprocess.Popen(
        worker,
        env=os.environ | ranks,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stderr is not None
    said = process.stderr.read()
    assert process.wait(PATIENCE_S) == 1
    assert said.splitlines()[-1].endswith(
        "unknown device 'no-device': use auto, cpu, cuda or cuda:N"
    )
