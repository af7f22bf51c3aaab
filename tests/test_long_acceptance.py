"""The table of long answers: where a loop begins, where thinking ends, and that every place counts once."""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from trace_builders import MODELS, made_requests, write_trace

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
script: Any = importlib.import_module("long_acceptance")


@pytest.mark.parametrize(
    ("tokens", "start"),
    [
        (list(range(300)), 300),
        ([*range(100), *[7] * 80], 101),
        ([*range(100), *[7] * 60], 160),  # too short to be called a loop
        ([*range(100), *([3, 1, 2] * 40)], 103),
        ([*range(100), *([3, 1, 2] * 40), 5], 221),  # it came out of it
    ],
)
def test_a_loop_begins_with_its_second_round(tokens: list[int], start: int) -> None:
    assert script.loop_start(tokens) == start


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("<think>abc</think>def", len("<think>abc</think>")),
        ("<think>abc", len("<think>abc")),
        ("abc</think>", 0),
        ("abc", 0),
    ],
)
def test_thinking_ends_with_its_mark(text: str, end: int, tokenizer: "PreTrainedTokenizerBase") -> None:
    """The tokenizer has a token for every letter."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text)
    assert script.thinking_end(ids, tokenizer) == end


def test_every_place_is_of_one_stretch_and_of_one_part(tmp_path: Path, tokenizer: "PreTrainedTokenizerBase") -> None:
    trace = write_trace(tmp_path / "trace.parquet", made_requests(6), MODELS)
    rows = {row[0]: row for row in script.lines(trace, tokenizer)}
    places = sum(len(request.output_ids) for request in trace)
    counts = {name: int(row[2].replace(",", "")) for name, row in rows.items()}
    stretches = sum(count for name, count in counts.items() if name.startswith("tokens"))
    assert stretches == counts["all but loops"] == counts.get("thinking", 0) + counts["answer"]
    assert counts["all but loops"] + counts.get("loops", 0) == places
