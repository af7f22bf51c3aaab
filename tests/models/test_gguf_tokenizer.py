"""Texts become the tokens that llama.cpp makes of them: by hand here, and by llama.cpp itself if it is there."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import gguf_vocabularies as vocabularies
import pytest
from gguf_vocabularies import CONTROL, DEFINED, END, SPACE_SIGN, WHOLE_WORD, Vocabulary
from llama_reference import llama_reference
from nightly import nightly_except
from transformers import AutoTokenizer

from specbench_kit.core.errors import SkitError
from specbench_kit.models.gguf import converted_folder
from specbench_kit.models.gguf_tokenizer import RULES, SplittingRule
from specbench_kit.models.pair import load_pair

pytestmark = pytest.mark.usefixtures("home")


def tokenizer_of(path: Path, vocabulary: Vocabulary, **metadata: Any) -> Any:
    return AutoTokenizer.from_pretrained(
        converted_folder(vocabularies.write(path, vocabulary, metadata))
    )


def tokens_of(tokenizer: Any, text: str) -> list[str]:
    return list(tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]))


BEGINNINGS = {
    "llama-bpe": {},
    "tekken": {},
    "falcon3": {},
    "qwen2": {"add_bos_token": True},
    "gpt-2": {"add_bos_token": True},
}


@pytest.mark.parametrize("rule", nightly_except(["llama-bpe", "qwen2"], BEGINNINGS))
def test_texts_begin_and_end_by_the_rule_where_the_file_does_not_say(
    rule: str, tmp_path: Path
) -> None:
    by_rule = tokenizer_of(
        tmp_path / "rule.gguf", vocabularies.byte_level(), pre=rule, **BEGINNINGS[rule]
    )
    assert tokens_of(by_rule, "Hello")[0] == "<|begin|>"
    stated = {"add_bos_token": False, "add_eos_token": True}
    by_file = tokenizer_of(tmp_path / "file.gguf", vocabularies.byte_level(), pre=rule, **stated)
    assert [tokens_of(by_file, "Hello")[index] for index in (0, -1)] == [
        tokens_of(by_rule, "Hello")[1],
        "<|end|>",
    ]


def test_a_word_is_its_token_where_the_rule_keeps_words(tmp_path: Path) -> None:
    kept, merged = (
        tokenizer_of(tmp_path / f"{rule}.gguf", vocabularies.byte_level(), pre=rule)
        for rule in ("llama-bpe", "qwen2")
    )
    assert tokens_of(kept, WHOLE_WORD)[1:] == ["Ġentirely"]
    assert len(tokens_of(merged, WHOLE_WORD)) > 1


@pytest.mark.parametrize("vocabulary", [vocabularies.byte_level(), vocabularies.sentence_pieces()])
def test_control_tokens_are_found_whole_whatever_their_characters(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    rule = {"pre": "deepseek-r1-qwen"} if vocabulary.merges else {}
    tokenizer = tokenizer_of(tmp_path / "control.gguf", vocabulary, **rule)
    numbers = tokenizer(f"a{CONTROL}b{DEFINED}c")["input_ids"]
    assert [number for number in numbers if number >= len(vocabulary.tokens) - 3] == [
        vocabulary.tokens.index(CONTROL),
        vocabulary.tokens.index(DEFINED),
    ]
    assert CONTROL not in tokenizer.decode(numbers, skip_special_tokens=True)
    assert len(tokenizer) == len(vocabulary.tokens)


def test_spaces_at_the_beginning_are_counted_as_the_file_says(tmp_path: Path) -> None:
    spaced = tokenizer_of(tmp_path / "spaced.gguf", vocabularies.sentence_pieces())
    bare = tokenizer_of(
        tmp_path / "bare.gguf", vocabularies.sentence_pieces(), add_space_prefix=False
    )
    for text in ("Hello", " Hello", "  Hello"):
        signs = text.replace(" ", SPACE_SIGN)
        assert "".join(tokens_of(spaced, text)) == f"<s>{SPACE_SIGN}{signs}"
        assert "".join(tokens_of(bare, text)) == f"<s>{signs}"
        assert spaced.decode(spaced(text)["input_ids"], skip_special_tokens=True) == text
        assert bare.decode(bare(text)["input_ids"], skip_special_tokens=True) == text


def test_an_answer_ends_with_tokens_that_are_named_so_whatever_their_type(tmp_path: Path) -> None:
    vocabulary = vocabularies.byte_level()
    assert vocabulary.types[vocabulary.tokens.index(END)] == vocabularies.NORMAL
    pair = load_pair(
        str(vocabularies.write(tmp_path / "ends.gguf", vocabulary, {"pre": "llama-bpe"})), None
    )
    assert pair.eos_ids == {1, vocabulary.tokens.index(END)}


def test_a_beginning_without_a_token_is_one_line(tmp_path: Path) -> None:
    vocabulary = vocabularies.byte_level()
    file = vocabularies.write(
        tmp_path / "none.gguf", vocabulary, {"pre": "llama-bpe", "bos_token_id": 1 << 20}
    )
    with pytest.raises(SkitError, match=r"none\.gguf"):
        converted_folder(file)


def _names_by_rule() -> dict[SplittingRule, list[str]]:
    names: dict[SplittingRule, list[str]] = defaultdict(list)
    for name, rule in RULES.items():
        names[rule].append(name)
    return names


ONE_OF_EACH = [names[0] for names in _names_by_rule().values()]


@pytest.mark.parametrize("rule", nightly_except(ONE_OF_EACH, [*RULES]))
def test_byte_level_texts_become_the_tokens_of_llama_cpp(rule: str, tmp_path: Path) -> None:
    path = vocabularies.write(tmp_path / "rule.gguf", vocabularies.byte_level(), {"pre": rule})
    with llama_reference(path) as reference:
        own = AutoTokenizer.from_pretrained(converted_folder(path))
        compared = [
            text
            for text in vocabularies.texts(120, 7)
            if not RULES[rule].llama_cpp_differs or vocabularies.is_plain(text)
        ]
        assert len(compared) > 20
        assert {text: own(text)["input_ids"] for text in compared} == {
            text: reference.tokens(text) for text in compared
        }


PIECES_FLAGS: list[dict[str, Any]] = [
    {},
    {"add_space_prefix": False},
    {"add_bos_token": False, "remove_extra_whitespaces": True},
    {"add_eos_token": True, "bos_token_id": 7, "add_space_prefix": True},
]


@pytest.mark.parametrize("flags", PIECES_FLAGS)
def test_sentence_pieces_become_the_tokens_of_llama_cpp(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    path = vocabularies.write(tmp_path / "pieces.gguf", vocabularies.sentence_pieces(), flags)
    with llama_reference(path) as reference:
        own = AutoTokenizer.from_pretrained(converted_folder(path))
        compared = vocabularies.texts(120, 7)
        assert {text: own(text)["input_ids"] for text in compared} == {
            text: reference.tokens(text) for text in compared
        }


@pytest.mark.parametrize(
    "flags", [{}, {"add_eos_token": True}, {"add_bos_token": True, "bos_token_id": 9}]
)
def test_flags_of_byte_level_files_are_those_of_llama_cpp(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    path = vocabularies.write(tmp_path / "flags.gguf", vocabularies.byte_level(), flags)
    with llama_reference(path) as reference:
        own = AutoTokenizer.from_pretrained(converted_folder(path))
        for text in vocabularies.texts(20, 3):
            assert own(text)["input_ids"] == reference.tokens(text)


def test_answers_end_as_those_of_llama_cpp(tmp_path: Path) -> None:
    vocabulary = vocabularies.byte_level()
    path = vocabularies.write(tmp_path / "ends.gguf", vocabulary, {"pre": "llama-bpe"})
    with llama_reference(path) as reference:
        asked = [1, 2, 300, *range(len(vocabulary.tokens) - 4, len(vocabulary.tokens))]
        assert {token for token in asked if reference.is_end(token)} == load_pair(
            str(path), None
        ).eos_ids
