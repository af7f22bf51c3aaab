"""Which tokens end an answer: the stated ones, the tokenizer's own, and control tokens that are named so."""

import json
from pathlib import Path

import pytest
from command_line import TinyPair, copy_model
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from specbench_kit.models.generation import end_tokens
from specbench_kit.models.pair import load_pair


def tokenizer_with(
    *control: str, plain: tuple[str, ...] = (), eos: str | None = None
) -> PreTrainedTokenizerFast:
    """A tokenizer of the words a and b, further words, and control tokens."""
    words = ["a", "b", *plain]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, "a")
    )
    tokenizer.add_special_tokens(list(control))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos)


def names(tokenizer: PreTrainedTokenizerFast, stated: int | list[int] | None = None) -> set[str]:
    return set(tokenizer.convert_ids_to_tokens(sorted(end_tokens(stated, tokenizer))))


def test_control_tokens_that_end_a_text_end_an_answer() -> None:
    qwen = tokenizer_with(
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|fim_pad|>",
        "<|file_sep|>",
        eos="<|im_end|>",
    )
    assert names(qwen) == {"<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|file_sep|>"}
    assert names(qwen, qwen.convert_tokens_to_ids("<|im_end|>")) == names(qwen)


def test_a_word_that_is_no_control_token_ends_nothing() -> None:
    assert names(tokenizer_with("<|im_start|>", plain=("</s>",))) == set()


def test_what_a_generation_config_states_ends_an_answer_too() -> None:
    assert names(tokenizer_with("<|im_end|>", plain=("stop",)), [1, 2]) == {
        "b",
        "stop",
        "<|im_end|>",
    }


def test_an_empty_list_says_that_nothing_ends() -> None:
    assert names(tokenizer_with("<|im_end|>", eos="<|im_end|>"), []) == set()


@pytest.mark.parametrize(
    ("control", "ends"),
    [
        (("<|end|>", "<|return|>", "<|call|>"), {"<|return|>", "<|call|>"}),
        (("<|end|>", "<|return|>"), {"<|end|>", "<|return|>"}),
        (("<|end|>", "<|flush|>", "<|calls|>"), {"<|flush|>", "<|calls|>"}),
        (("</s>", "<|tool_response>", "<turn|>"), {"<|tool_response>", "<turn|>"}),
    ],
)
def test_tokens_that_end_a_part_of_an_answer_do_not_end_it(
    control: tuple[str, ...], ends: set[str]
) -> None:
    assert names(tokenizer_with(*control)) == ends


def test_a_folder_with_an_incomplete_generation_config(tiny: TinyPair, tmp_path: Path) -> None:
    folder = copy_model(tiny.target, tmp_path / "model")
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    kinds = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    content["added_tokens"].append({"id": 5, "content": "<|endoftext|>", **kinds})
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {
        ("<|endoftext|>" if number == 5 else name): number for name, number in vocabulary.items()
    }
    file.write_text(json.dumps(content))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    assert load_pair(str(folder), None, device="cpu").eos_ids == {1, 5}
