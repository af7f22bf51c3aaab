"""A table of draft lengths by batch size: the example of TensorRT-LLM, and the table that tuning fills."""

import pytest
from known_drafts import SURE, KnownDrafter

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.batch_lengths import BatchLengths
from specbench_kit.methods.spec import parse_method


def drafted(method: BatchLengths, requests: int) -> set[int]:
    """Return the lengths of the drafts of a batch of so many requests."""
    drafter = KnownDrafter([[SURE] * 9] * requests)
    method.policy().draft(drafter)
    return {draft.tree.last for draft in drafter.drafts}


def test_the_example_of_tensorrt_llm() -> None:
    """Its `draft_len_schedule = {4: 4, 8: 2, 32: 1}`: 4 tokens up to 4 requests, 2 up to 8, 1 up to 32, then none."""
    lengths_by_size = {
        requests: drafted(BatchLengths(), requests) for requests in (1, 4, 5, 8, 9, 32, 33)
    }
    assert lengths_by_size == {1: {4}, 4: {4}, 5: {2}, 8: {2}, 9: {1}, 32: {1}, 33: {0}}


def test_tuning_fills_the_table_with_the_fastest_length_of_every_size() -> None:
    """Speeds are made up: the best of one request is 6 tokens, of two 3, of four 1, and of eight none."""
    best = {1: 6, 2: 3, 4: 1, 8: 0}
    trials: set[tuple[str, int]] = set()

    def tokens_per_s(spec: str, batch_size: int) -> float:
        trials.add((spec, batch_size))
        method = parse_method(spec)
        assert isinstance(method, BatchLengths)
        assert method.sizes == (batch_size,)
        return 100.0 - abs(method.lengths[0] - best[batch_size])

    assert BatchLengths.tuning_specs(tokens_per_s, 8, longest=7) == [
        "batch-lengths:lengths=6-3-1-0,sizes=1-2-4-8"
    ]
    assert len(trials) == 4 * 8
    assert BatchLengths.tuning_specs(tokens_per_s, 1, longest=7) == [
        "batch-lengths:lengths=6,sizes=1"
    ]
    best[16] = 2
    assert BatchLengths.tuning_specs(tokens_per_s, 9, longest=7) == [
        "batch-lengths:lengths=6-3-1-0-2,sizes=1-2-4-8-16"
    ]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lengths=4-2", "every one of the sizes 4-8-32 needs a length, and lengths are 4-2"),
        ("lengths=4,sizes=8-4", "every one of the sizes 8-4 needs a length, and lengths are 4"),
        ("lengths=4-2,sizes=8-4", "sizes must rise from at least 1, as 4-8-32 does, not 8-4"),
        ("lengths=4-2,sizes=0-4", "sizes must rise from at least 1, as 4-8-32 does, not 0-4"),
    ],
)
def test_tables_that_make_no_sense_are_one_line(spec: str, message: str) -> None:
    with pytest.raises(SkitError) as refused:
        parse_method(f"batch-lengths:{spec}")
    assert str(refused.value) == f"batch-lengths: {message}"
