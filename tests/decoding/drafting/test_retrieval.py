"""Trees retrieved from a corpus: figures worked out by hand by REST's rule."""

import json
from pathlib import Path

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.retrieval import Corpus, load_corpus

CORPUS = Corpus([(1, 2, 3, 4), (9, 1, 2, 3, 5), (1, 2, 6), (8, 2, 7)])


def test_the_most_frequent_continuations_are_a_tree() -> None:
    """After 1 2: 3 twice and 6 once; 3 goes on with 4 and with 5. Of equal counts the shorter path comes first."""
    assert CORPUS.retrieve((1, 2), 16, 64) == [
        (-1, 3, 2 / 3),
        (-1, 6, 1 / 3),
        (0, 4, 0.5),
        (0, 5, 0.5),
    ]
    assert CORPUS.retrieve((1, 2), 16, 3) == [(-1, 3, 2 / 3), (-1, 6, 1 / 3), (0, 4, 0.5)]


def test_the_longest_match_decides() -> None:
    assert CORPUS.retrieve((9, 1, 2), 16, 64) == [(-1, 3, 1.0), (0, 5, 1.0)]
    assert CORPUS.retrieve((9, 1, 2), 2, 1) == [(-1, 3, 2 / 3)]
    assert CORPUS.retrieve((0, 9, 1, 2), 16, 1) == [(-1, 3, 1.0)]


def test_one_token_is_no_match_and_texts_are_apart() -> None:
    assert CORPUS.retrieve((4, 2), 16, 64) == []
    assert CORPUS.retrieve((2, 6), 16, 64) == []
    assert CORPUS.retrieve((2,), 16, 64) == []


def test_a_place_is_read_for_ten_tokens() -> None:
    assert len(Corpus([tuple(range(40))]).retrieve((3, 4), 16, 64)) == 10


@pytest.mark.parametrize("content", ["", "{}", "no json", json.dumps({"output_ids": []})])
def test_a_corpus_without_answers_is_refused_in_one_line(content: str, tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text(content)
    with pytest.raises(SkitError, match=r"^(cannot read )?the corpus "):
        load_corpus(str(file))
