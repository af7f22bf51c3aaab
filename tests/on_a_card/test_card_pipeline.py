"""A pipeline whose stages are processes, each with an emulated card of its own."""

import os
from pathlib import Path

import pytest
from command_line import TinyPair, read_object, read_rows, skit_here
from emulated_card import Machine

HOOK = Path(__file__).parents[1] / "emulated_card" / "hook"

pytestmark = pytest.mark.slow


def test_stages_on_cards_answer_as_one_process_does(
    tiny: TinyPair, prompts: Path, tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]))
    shared = ["--dataset", prompts, "--max-new-tokens", 8, "--device", "cuda", "--dtype", "float32"]
    outputs = {}
    for launch in ("threads", "processes"):
        method = ["--method", "specpipe:stages=2,width=6,children=3"]
        options = ["--launch", "processes"] if launch == "processes" else []
        done = skit_here("bench", *tiny.options, *shared, *method, *options, "--out", tmp_path / launch)
        assert done.returncode == 0, done.stderr
        (folder,) = (tmp_path / launch).glob("*-specpipe-*")
        assert read_object(folder / "summary.json")["lossless"]["identical"] == 2
        outputs[launch] = [row["output_ids"] for row in read_rows(folder / "requests.jsonl")]
    assert outputs["processes"] == outputs["threads"]
    assert machine.counts.launches > 0
