"""The table of long answers: where repetition begins, where thinking ends, and that every place counts once."""

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
        ([*range(200), *[7] * 300], 169),  # 31 others and the 7
        ([*range(200), *[7] * 90], 290),  # too short to tell
        ([*range(200), *([3, 1, 2] * 100), *range(200)], 700),  # it came out of it
        # 28 others, and 0 to 3.
        ([*range(200), *(token for number in range(10) for token in (3, 1, number, 2) * 8)], 172),
    ],
)
def test_an_answer_repeats_itself_from_the_first_window_of_few_tokens_on(
    tokens: list[int], start: int
) -> None:
    assert script.repetition_start(tokens) == start


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("<think>abc</think>def", len("<think>abc</think>")),
        ("<think>abc", len("<think>abc")),
        ("abc</think>", 0),
        ("abc", 0),
    ],
)
def test_thinking_ends_with_its_mark(
    text: str, end: int, tokenizer: "PreTrainedTokenizerBase"
) -> None:
    """The tokenizer has a token for every letter."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text)
    assert script.thinking_end(ids, tokenizer) == end


def test_every_place_is_of_one_stretch_and_of_one_part(
    tmp_path: Path, tokenizer: "PreTrainedTokenizerBase"
) -> None:
    trace = write_trace(tmp_path / "trace.parquet", made_requests(6), MODELS)
    rows = {row[0]: row for row in script.lines(trace, tokenizer)}
    places = sum(len(request.output_ids) for request in trace)
    counts = {name: int(row[2].replace(",", "")) for name, row in rows.items()}
    stretches = sum(count for name, count in counts.items() if name.startswith("tokens"))
    assert (
        stretches == counts["all but repetitions"] == counts.get("thinking", 0) + counts["answer"]
    )
    assert counts["all but repetitions"] + counts.get("repetitions", 0) == places
