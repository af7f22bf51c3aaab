"""Makes the tokenizer of a GGUF file begin, end, space and split texts as llama.cpp does.

Transformers reads the tokens and their merges from a file; the rest is in llama.cpp's rules for the
kind of tokenizer (`tokenizer.ggml.model`) and for the splitting that the file names
(`tokenizer.ggml.pre`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError, require
from specbench_kit.models.generation import ENDS, FILE_ENDS

if TYPE_CHECKING:
    from gguf import GGUFReader

CONTRACTION = "'(?:[stmd]|re|ve|ll)"
LONE_SPACES = r"\s+(?!\S)|\s+"
GPT_2 = rf"{CONTRACTION}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{LONE_SPACES}"
"""The expression of GPT-2, by which every later one is named here."""
DIGIT = r"\p{N}"
CAPITAL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _with_marks_and_lines(
    words: str, numbers: str, line_ends: str = r"[\r\n]*", not_signs: str = r"\s\p{L}\p{N}"
) -> str:
    """Return an expression of the kind of OpenAI's later models: a mark may begin a word, and lines
    end signs.
    """
    return rf"{words}|{numbers}| ?[^{not_signs}]+{line_ends}|\s*[\r\n]+|{LONE_SPACES}"


def _small_after_capitals(ending: str) -> str:
    """Return an expression for words that a capital letter begins, such as the two of
    `camelCase`.
    """
    before = r"[^\r\n\p{L}\p{N}]?"
    return rf"{before}{CAPITAL}*{SMALL}+{ending}|{before}{CAPITAL}+{SMALL}*{ending}"


ANY_CASE = f"(?i:{CONTRACTION})"
WORDS = rf"{ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
WORDS_WITH_MARKS = rf"{ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+"
IN_THREES = r"\p{N}{1,3}"
OF_LLAMA_3 = _with_marks_and_lines(WORDS, IN_THREES)
OF_QWEN_2 = _with_marks_and_lines(WORDS, DIGIT)
OF_QWEN_3_5 = _with_marks_and_lines(WORDS_WITH_MARKS, DIGIT, not_signs=r"\s\p{L}\p{M}\p{N}")
OF_TEKKEN = _with_marks_and_lines(_small_after_capitals(""), DIGIT, r"[\r\n/]*")
OF_GPT_4O = _with_marks_and_lines(_small_after_capitals(f"{ANY_CASE}?"), IN_THREES, r"[\r\n/]*")
OF_SEED_CODER = _with_marks_and_lines(WORDS, DIGIT, "", r"\s\p{L}\p{N}\r\n")
OF_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True, slots=True)
class SplittingRule:
    """How text is split before its parts become tokens.

    Matches of each expression are parts of their own, and so is what lies between them; the next
    expression splits these parts further.
    """

    expressions: tuple[str, ...]
    adds_bos: bool = False
    """True if a text begins with the beginning-of-sequence token where the file does not say."""
    keeps_words: bool = False
    """True if a part that is a token becomes that token, whatever the merges would make of it."""
    llama_cpp_differs: str = ""
    """The texts that llama.cpp splits otherwise than the models' own tokenizers do, as here; empty
    if none.
    """


def _rules() -> dict[str, SplittingRule]:
    """Return the rules by llama.cpp's names for them."""
    marks = "with small letters beyond a to z, or marks, since its expressions know no categories of letters"
    after_capitals = SplittingRule((OF_GPT_4O,), llama_cpp_differs=marks)
    kinds = {
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum modern-bert jina-es "
        "jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe": SplittingRule(
            (GPT_2,)
        ),
        "codeshell command-r exaone minerva-7b refact smollm starcoder mellum2": SplittingRule(
            (DIGIT, GPT_2)
        ),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": SplittingRule(
            (OF_LLAMA_3,), adds_bos=True, keeps_words=True
        ),
        "dbrx smaug-bpe chatglm-bpe glm4": SplittingRule((OF_LLAMA_3,)),
        "minicpm5": SplittingRule(
            (IN_THREES, _with_marks_and_lines(WORDS, r"\p{N}+")), keeps_words=True
        ),
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": SplittingRule(
            (OF_QWEN_2,)
        ),
        "qwen35": SplittingRule((OF_QWEN_3_5,)),
        "tekken": SplittingRule(
            (OF_TEKKEN,), adds_bos=True, keeps_words=True, llama_cpp_differs=marks
        ),
        "gpt-4o llama4 kanana2 talkie minimax-m2": after_capitals,
        "seed-coder": SplittingRule((OF_SEED_CODER,)),
        "deepseek-coder": SplittingRule(
            (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGIT)
        ),
        "falcon": SplittingRule((r"[\p{P}$+<=>^~|`]+", GPT_2, "[0-9]{3}")),
        "default": SplittingRule((r"[\p{P}$+<=>^~|]+", GPT_2, r"\p{N}+", "[0-9]{3}")),
        "bloom poro-chat gpt3-finnish": SplittingRule((OF_BLOOM,)),
        "viking": SplittingRule((OF_BLOOM, DIGIT)),
    }
    return {name: rule for names, rule in kinds.items() for name in names.split()}


RULES: Mapping[str, SplittingRule] = _rules()

SENTENCE_PIECES = "llama"
"""The kind of tokenizer that writes a space as a sign of its own, and splits no text."""
BYTE_LEVEL = "gpt2"
"""The kind of tokenizer that writes each byte as a character, and splits text by a rule."""
SPACE_SIGN = "\u2581"
FOUND_ANYWHERE = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
"""The options of a token that is found in a text as it is, whatever stands around it."""
INSTEAD = "give the original model as a folder or hub id instead"

USER_DEFINED = 4
WHOLE = (2, 3, USER_DEFINED)
"""The numbers of the types of tokens that are found in a text before it is split: unknown, control,
user-defined.
"""


@dataclass(frozen=True, slots=True)
class TokenizerMetadata:
    """What a file says about its tokenizer; what it leaves out is llama.cpp's default."""

    kind: str
    """The kind of tokenizer, such as `gpt2`; empty if the file holds none."""
    rule: str
    """The rule by which text is split before it becomes tokens; empty if the file names none."""
    adds_bos: bool
    """True if a text begins with the beginning-of-sequence token."""
    adds_eos: bool
    """True if a text ends with the end-of-sequence token."""
    adds_space: bool
    """True if a text, and what follows a control token, begins with one space more."""
    bos: int | None
    eos: int | None
    ends: tuple[int, ...]
    """The tokens that the file names as the end of a text, a turn or a message."""
    tokens: Sequence[str]
    """The texts of all tokens, as the file spells them."""
    types: Sequence[int]
    """The types of all tokens; empty if the file names none."""

    @classmethod
    def of(cls, reader: "GGUFReader") -> "TokenizerMetadata":
        """Read the metadata of an open file."""
        kind = _text(reader, "model")
        rule = _text(reader, "pre")
        known_rule = RULES.get(rule)
        is_pieces = kind == SENTENCE_PIECES
        adds_bos = is_pieces or (known_rule is not None and known_rule.adds_bos)
        # llama.cpp adds it for Gemma 4 even where a file denies it.
        adds_bos = kind == "gemma4" or _flag(reader, "add_bos_token", adds_bos)
        named = {name: _token(reader, name) for name in ("bos", "eos", "eot", "eom")}
        return cls(
            kind=kind,
            rule=rule,
            adds_bos=adds_bos,
            adds_eos=_flag(reader, "add_eos_token", kind == "t5"),
            adds_space=_flag(reader, "add_space_prefix", is_pieces),
            bos=1 if named["bos"] is None and is_pieces else named["bos"],
            eos=2 if named["eos"] is None and is_pieces else named["eos"],
            ends=tuple(
                token for name in ("eos", "eot", "eom") if (token := named[name]) is not None
            ),
            tokens=_list(reader, "tokens"),
            types=_list(reader, "token_type"),
        )

    @property
    def whole_tokens(self) -> dict[int, bool]:
        """Return the tokens that are found in a text before it is split, and whether they are
        control tokens.

        A token whose name says that a text ends is one of them, whatever its type.
        """
        whole = {
            number: kind != USER_DEFINED for number, kind in enumerate(self.types) if kind in WHOLE
        }
        return whole | {
            number: True for number, text in enumerate(self.tokens) if text in ENDS | FILE_ENDS
        }


def _text(reader: "GGUFReader", name: str) -> str:
    field = reader.get_field(f"tokenizer.ggml.{name}")
    return "" if field is None else str(field.contents())


def _flag(reader: "GGUFReader", name: str, default: bool) -> bool:
    return (_text(reader, name) or str(default)) == "True"


def _token(reader: "GGUFReader", name: str) -> int | None:
    """Return the number of a token that a file names; None if it names none, or one that it does
    not have.
    """
    stated = _text(reader, f"{name}_token_id")
    tokens = reader.get_field("tokenizer.ggml.tokens")
    return int(stated) if stated and tokens is not None and int(stated) < len(tokens.data) else None


def _list(reader: "GGUFReader", name: str) -> list[Any]:
    field = reader.get_field(f"tokenizer.ggml.{name}")
    return [] if field is None else list(field.contents())


def correct_tokenizer(name: str, tokenizer: Any, metadata: TokenizerMetadata) -> None:
    """Let a tokenizer space, split, begin and end texts as llama.cpp does; SkitError for an unknown
    rule.
    """
    if metadata.kind == BYTE_LEVEL:
        _split(name, tokenizer.backend_tokenizer, metadata.rule)
    if metadata.kind == SENTENCE_PIECES:
        _space(tokenizer.backend_tokenizer, metadata.adds_space)
    for role in ("bos", "eos"):
        token = getattr(metadata, role)
        if token is not None:
            setattr(tokenizer, f"{role}_token", tokenizer.convert_ids_to_tokens(token))
    _begin_and_end(name, tokenizer, metadata)


def _split(name: str, backend: Any, rule_name: str) -> None:
    from tokenizers import Regex, pre_tokenizers

    rule = RULES.get(rule_name or "default")
    if rule is None:
        raise SkitError(
            f"'{name}' splits text by the rule '{rule_name}', which is not known here: {INSTEAD}"
        )
    splits = [
        pre_tokenizers.Split(Regex(expression), "isolated") for expression in rule.expressions
    ]
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_alone])
    backend.model.ignore_merges = rule.keeps_words


def _space(backend: Any, adds_space: bool) -> None:
    """Write spaces as signs, one more than there are at the beginning if the file says so."""
    from tokenizers import decoders, normalizers, pre_tokenizers

    first = [normalizers.Prepend(SPACE_SIGN)] if adds_space else []
    backend.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", SPACE_SIGN)])
    # A tokenizer has to have one; this finds nothing, since no space is left.
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    stripped = [decoders.Strip(" ", 1, 0)] if adds_space else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE_SIGN, " "), decoders.ByteFallback(), decoders.Fuse(), *stripped]
    )


def _begin_and_end(name: str, tokenizer: Any, metadata: TokenizerMetadata) -> None:
    """Let a tokenizer put the tokens around a text that llama.cpp does."""
    from tokenizers.processors import TemplateProcessing

    wanted = {"bos": metadata.adds_bos, "eos": metadata.adds_eos}
    added = {role: getattr(tokenizer, f"{role}_token") for role in wanted if wanted[role]}
    for role, token in added.items():
        require(
            token is not None, f"'{name}' adds the {role} token to texts and names none: {INSTEAD}"
        )
    first, last = ([added[role]] if role in added else [] for role in wanted)
    numbers = [(token, tokenizer.convert_tokens_to_ids(token)) for token in added.values()]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *first, "$B:1", *last],
        special_tokens=numbers,
    )


def correct_saved_tokens(path: Path, metadata: TokenizerMetadata, vocabulary: int) -> None:
    """Let the tokens of a saved tokenizer be those of the file, and find those whole that llama.cpp
    finds whole.

    Transformers adds a default for a token that a file does not name, which the model does not
    have. It writes control tokens as if they were text where characters of them stand for no byte,
    and would split them.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    if metadata.kind == BYTE_LEVEL:
        content["model"]["vocab"] = {text: number for number, text in enumerate(metadata.tokens)}
    added = {token["id"]: token for token in content["added_tokens"] if token["id"] < vocabulary}
    if metadata.kind in (BYTE_LEVEL, SENTENCE_PIECES):
        spelled = content["model"]["vocab"]
        for number, is_control in metadata.whole_tokens.items():
            text = metadata.tokens[number]
            if (
                spelled.get(text) == number
            ):  # else transformers has its own spelling, and merges that need it
                added[number] = {
                    "id": number,
                    "content": text,
                    **FOUND_ANYWHERE,
                    "special": is_control,
                }
    content["added_tokens"] = [added[number] for number in sorted(added)]
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
