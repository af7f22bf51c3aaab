"""Small GGUF models with vocabularies whose tokens cross every boundary at which a rule may split a text."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unicodedata import category
from unittest.mock import patch

import gguf
from tiny_models import fill, tiny_llama
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from benchmarks import gguf_file
from specbench_kit.models.catalogue import locate
from specbench_kit.models.pair import LoadedModel

WORDS = (
    *(
        "Hello",
        " world",
        "it's",
        "I'LL",
        "we're",
        " don't",
        "'s",
        "'T",
        "camelCase",
        "HTTPServer",
        "IMG",
        "a",
        " A",
        "x_1",
    ),
    *(
        "2026",
        "12",
        " 345,678",
        "3.14",
        "½",
        "²",
        "٣٤",
        "1",
        "!!",
        "...",
        "?\n",
        " (a)",
        "=>",
        "==",
        "$5",
        "/",
        "//",
    ),
    *(
        "</a>",
        "[1]",
        "{b}",
        "`c`",
        "^|~",
        "-",
        "—",
        "…",
        "，",
        "。",
        "a.b",
        "<x>",
        "\n\n",
        "\r\n",
        "\t",
        " ",
        "  ",
        "    ",
    ),
    *(
        " größer",
        "naïve",
        "ÀÉ",
        "日本語",
        " 漢字",
        "かな",
        "한국",
        "ไทย",
        "Привет",
        "मन्त्र",
        "😀",
        "👩‍💻",
    ),
)
WHOLE_WORD = " entirely"
"""A text whose token no merge makes."""
CONTROL = "<｜User｜>"
"""The text of a control token, with characters that are no byte's."""
DEFINED = "<tool>"
"""The text of a token that the makers of a model defined."""
SPACE_SIGN = "\u2581"
END = "<|im_end|>"
"""The text of a token that ends an answer, although no file here names it."""


def texts(count: int, seed: int) -> list[str]:
    """Return random texts, and those that begin or consist of what rules treat differently."""
    generator = random.Random(seed)
    drawn = ["".join(generator.choices(WORDS, k=generator.randint(1, 12))) for _ in range(count)]
    spaced = [f"{' ' * generator.randint(1, 3)}{text}" for text in drawn[: count // 4]]
    odd = (
        " ",
        "  ",
        WHOLE_WORD,
        f"{WHOLE_WORD}s",
        f"{CONTROL} hi{DEFINED}x {DEFINED} y{CONTROL}",
        "\n a",
        "a  12  b",
    )
    return [*drawn, *spaced, *odd]


def is_plain(text: str) -> bool:
    """Return whether a text has no marks, and no small or capital letters beyond those of English."""
    return all(
        character.isascii() or category(character) not in ("Mn", "Mc", "Ll", "Lu")
        for character in text
    )


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a file says about its tokens."""

    kind: str
    tokens: list[str]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None


NORMAL, UNKNOWN, CONTROL_TYPE, DEFINED_TYPE, BYTE = (
    gguf.TokenType.NORMAL,
    gguf.TokenType.UNKNOWN,
    gguf.TokenType.CONTROL,
    gguf.TokenType.USER_DEFINED,
    gguf.TokenType.BYTE,
)


@cache
def byte_level() -> Vocabulary:
    """Return a vocabulary that was learned from texts that nothing splits."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=alphabet,
        max_token_length=14,
        show_progress=False,
    )
    learner.train_from_iterator(texts(2000, 1), trainer)
    learned = sorted(learner.get_vocab(), key=learner.get_vocab().__getitem__)
    merges = [" ".join(merge) for merge in _merges(learner)]
    added = [WHOLE_WORD.replace(" ", "Ġ"), CONTROL, DEFINED, END]
    types = (
        [CONTROL_TYPE] * 2 + [NORMAL] * (len(learned) - 1) + [CONTROL_TYPE, DEFINED_TYPE, NORMAL]
    )
    return Vocabulary("gpt2", learned + added, types, merges=merges)


@cache
def sentence_pieces() -> Vocabulary:
    """Return a vocabulary whose tokens hold signs for spaces, with a score for each in the order of their merges."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(SPACE_SIGN, "never", split=False)
    trainer = trainers.BpeTrainer(vocab_size=900, max_token_length=12, show_progress=False)
    learner.train_from_iterator(texts(2000, 1), trainer)
    learned = sorted(learner.get_vocab(), key=learner.get_vocab().__getitem__)
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL_TYPE, CONTROL_TYPE, *[BYTE] * 256, *[NORMAL] * len(learned)]
    types += [CONTROL_TYPE, DEFINED_TYPE, CONTROL_TYPE]
    scores = [0.0] * len(first) + [-float(rank) for rank in range(len(learned))] + [0.0] * 3
    return Vocabulary("llama", [*first, *learned, CONTROL, DEFINED, END], types, scores)


def _merges(learner: Tokenizer) -> list[list[str]]:
    merges: list[list[str]] = json.loads(learner.to_str())["model"]["merges"]
    return merges


def write(
    path: Path, vocabulary: Vocabulary, metadata: Mapping[str, bool | int | str] | None = None
) -> Path:
    """Write a tiny model with a vocabulary; `metadata` is added, by names without `tokenizer.ggml.`."""

    def add(writer: gguf.GGUFWriter, _: object) -> None:
        writer.add_tokenizer_model(vocabulary.kind)
        writer.add_token_list(vocabulary.tokens)
        writer.add_token_types(vocabulary.types)
        if vocabulary.scores:
            writer.add_token_scores(vocabulary.scores)
        if vocabulary.merges:
            writer.add_token_merges(vocabulary.merges)
            writer.add_bos_token_id(0)
            writer.add_eos_token_id(1)
        for name, value in (metadata or {}).items():
            kind = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}[
                type(value)
            ]
            kind(f"tokenizer.ggml.{name}", value)

    sizes = {"vocab_size": len(vocabulary.tokens), "hidden_size": 32, "num_hidden_layers": 1}
    with patch.object(gguf_file, "_add_tokenizer", add):
        gguf_file.write(
            LoadedModel(fill(tiny_llama(**sizes), 0), locate("bundled", "draft")), None, path
        )
    return path
