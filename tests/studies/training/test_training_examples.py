"""Labels, features, and a split that leaks nothing."""

from pathlib import Path

import numpy as np
import pytest
from trace_builders import made_request, made_requests, write_trace

from specbench_kit.core.errors import SkitError
from specbench_kit.studies.training.examples import extract, split_by_prompt
from specbench_kit.studies.training.offsets import Offsets, read_offsets
from specbench_kit.traces.trace import RequestTrace


def test_the_first_mismatch_is_rejected_and_what_follows_is_dropped(tmp_path: Path) -> None:
    drafted = np.array([[5, 0, 7], [6, 7, 8], [0, 8, 9]], np.int32)
    table = np.arange(45, dtype=np.float32).reshape(3, 3, 5)
    trace = RequestTrace("one", "test", [1], [5, 6, 7], "eos", [8, 9], drafted, table)
    examples = extract(read_offsets(write_trace(tmp_path / "t.parquet", [trace])))
    assert examples.labels.tolist() == [True, False, True, True, True, False]
    assert examples.positions.tolist() == [1, 2, 1, 2, 3, 1]
    np.testing.assert_array_equal(
        examples.features, table[[0, 0, 1, 1, 1, 2], [0, 1, 0, 1, 2, 0], :4]
    )


def test_tokens_beyond_the_known_answer_are_no_examples(tmp_path: Path) -> None:
    traces = [
        made_request(str(seed), 30, spare=spare, seed=seed) for seed in range(5) for spare in (0,)
    ]
    offsets = read_offsets(write_trace(tmp_path / "t.parquet", traces))
    examples = extract(offsets)
    ends = np.concatenate([np.arange(30, 0, -1)] * 5)
    rows, columns = offsets.examined()
    assert (columns < ends[rows]).all()
    assert len(examples) == len(rows)


def test_each_prompt_is_in_exactly_one_part(tmp_path: Path) -> None:
    offsets = read_offsets(write_trace(tmp_path / "t.parquet", made_requests(23, 12)))
    parts = split_by_prompt(offsets, seed=3).parts
    prompts = {name: set(part.conversation.tolist()) for name, part in parts.items()}
    assert [len(names) for names in prompts.values()] == [14, 4, 5]
    assert set.union(*prompts.values()) == set(range(23))
    assert sum(map(len, prompts.values())) == 23
    for name, part in parts.items():
        assert set(extract(part).prompts.tolist()) == prompts[name]
        assert len(part) == 12 * len(prompts[name])


def test_no_token_statistics_are_shared_between_parts(tmp_path: Path) -> None:
    """Every made request draws its own statistics: one that is found in two parts would be a leak."""
    offsets = read_offsets(write_trace(tmp_path / "t.parquet", made_requests(15, 20)))
    rows = [
        {tuple(row) for row in extract(part).features.tolist()}
        for part in split_by_prompt(offsets, seed=0).parts.values()
    ]
    assert all(rows)
    assert not rows[0] & rows[1]
    assert not rows[0] & rows[2]
    assert not rows[1] & rows[2]


def test_all_turns_of_a_dialogue_go_to_one_part(tmp_path: Path) -> None:
    traces = []
    for dialogue in range(12):
        prompt = (dialogue, 100)
        for turn in (1, 2, 3):
            traces.append(
                made_request(f"{dialogue}/{turn}", 8, prompt=prompt, seed=10 * dialogue + turn)
            )
            prompt = (*prompt, *traces[-1].output_ids, 7)
    offsets = read_offsets(write_trace(tmp_path / "t.parquet", traces))
    for part in split_by_prompt(offsets, seed=1).parts.values():
        dialogues = [int(request) // 3 for request in part.request[part.first]]
        assert all(dialogues.count(dialogue) == 3 for dialogue in dialogues)


def test_the_split_follows_the_seed(tmp_path: Path) -> None:
    offsets = read_offsets(write_trace(tmp_path / "t.parquet", made_requests(20, 5)))

    def test_prompts(seed: int) -> set[int]:
        part: Offsets = split_by_prompt(offsets, seed).test
        return set(part.conversation.tolist())

    assert test_prompts(1) == test_prompts(1)
    assert len({frozenset(test_prompts(seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize("count", [1, 4])
def test_too_few_prompts_are_refused(count: int, tmp_path: Path) -> None:
    offsets = read_offsets(write_trace(tmp_path / "t.parquet", made_requests(count)))
    with pytest.raises(
        SkitError, match=rf"holds {count} prompts?, which cannot be split: record at least 5"
    ):
        split_by_prompt(offsets, seed=0)


def test_five_prompts_can_be_split(tmp_path: Path) -> None:
    offsets = read_offsets(write_trace(tmp_path / "t.parquet", made_requests(5)))
    parts = split_by_prompt(offsets, seed=0).parts.values()
    assert [len(part.first) for part in parts] == [3, 1, 1]
