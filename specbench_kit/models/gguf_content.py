"""What a GGUF file holds: its metadata and tensors, those of a file in several parts joined, and what is refused.

Also here: what transformers does not take from a GGUF file, set as llama.cpp reads it: rope scaling, end tokens,
tokenizer.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.plain_text import first_line

if TYPE_CHECKING:
    from gguf import GGUFReader

PART = re.compile(r"-(\d{5})-of-(\d{5})$")
"""The end of the names of the parts of a model, without the suffix."""
SPELLINGS = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss", "minimax-m2": "minimax_m2"}
"""Architectures that transformers maps under another name than that in the file."""
INSTEAD = "give the original model as a folder or hub id instead"


@dataclass(frozen=True, slots=True)
class Metadata:
    """The parts of a file's metadata that decide whether it can be converted, and how."""

    architecture: str
    tokenizer: str
    text_splitting: str
    """The rule by which text is split before it becomes tokens; empty if the file names none."""
    adds_bos: bool
    """True if a text begins with the beginning-of-sequence token; what a file leaves out is llama.cpp's default."""
    end_token: int | None
    """The token that ends a text; None if the file names none."""
    end_tokens: tuple[int, ...]
    """The tokens that end a text, a turn or a message."""
    rope_scaling: dict[str, float | str]
    """What the file says about the scaling of rotary frequencies, by llama.cpp's names, such as `type`."""
    rope_factors: tuple[float, ...]
    """The number by which each rotary frequency is divided; empty without such a tensor."""
    parts: int
    tensors: tuple[str, ...]
    types: dict[str, int]
    """The number of tensors of each type, such as Q4_K."""

    @classmethod
    def of(cls, reader: "GGUFReader") -> "Metadata":
        """Read the metadata of an open file."""
        architecture = _text(reader, "general.architecture")
        tokenizer = _text(reader, "tokenizer.ggml.model")
        ends = [_text(reader, f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
        prefix = f"{architecture}.rope.scaling."
        factors = [tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight"]
        return cls(
            architecture=architecture,
            tokenizer=tokenizer,
            text_splitting=_text(reader, "tokenizer.ggml.pre"),
            adds_bos=(_text(reader, "tokenizer.ggml.add_bos_token") or str(tokenizer == "llama")) == "True",
            end_token=int(ends[0]) if ends[0] else None,
            end_tokens=tuple(sorted({int(token) for token in ends if token})),
            rope_scaling={
                name.removeprefix(prefix): field.contents()
                for name, field in reader.fields.items()
                if name.startswith(prefix)
            },
            rope_factors=tuple(float(factor) for factor in factors[0]) if factors else (),
            parts=int(_text(reader, "split.count") or 1),
            tensors=tuple(tensor.name for tensor in reader.tensors),
            types=dict(Counter(tensor.tensor_type.name for tensor in reader.tensors)),
        )


def parts_of(path: Path) -> list[Path]:
    """Return all files of a model in the order of its parts; a missing part is an error of one line."""
    match = PART.search(path.stem)
    if match is None:
        return [path]
    count = int(match[2])
    base = path.stem[: match.start()]
    files = [path.with_name(f"{base}-{part:05}-of-{count:05}{path.suffix}") for part in range(1, count + 1)]
    missing = [file.name for file in files if not file.is_file()]
    require(not missing, f"'{path.name}' is one of {count} parts of a model, and {', '.join(missing)} is not beside it")
    return files


@contextmanager
def shared_reader(files: Sequence[Path]) -> Iterator["GGUFReader"]:
    """Yield the reader of a model's parts, which transformers is given too whenever it opens a file within the block.

    A reader goes through the whole vocabulary in Python, which takes seconds; transformers would make three more. The
    first part has all metadata, and the tensors of the others are added to its own.
    """
    import gguf

    readers = [open_gguf(file) for file in files]
    reader = readers[0]
    for other in readers[1:]:
        reader.tensors += other.tensors
    own_type = gguf.GGUFReader
    gguf.GGUFReader = lambda *_: reader
    try:
        yield reader
    finally:
        gguf.GGUFReader = own_type


def open_gguf(path: Path) -> "GGUFReader":
    """Open a file; one that cannot be read is an error of one line."""
    import numpy as np
    from gguf import GGUFReader

    class PlainReader(GGUFReader):
        """Goes through a vocabulary in a quarter of the time, since slices of a mapped file are plain arrays here."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value.view(np.ndarray) if name == "data" else value)

    try:
        return PlainReader(path)
    except Exception as error:  # the reader lets through whatever damaged bytes lead to
        raise SkitError(f"cannot read '{path.name}' ({first_line(error)}): the file is damaged or cut off") from error


def require_convertible(files: Sequence[Path], metadata: Metadata) -> None:
    """Raise SkitError if a file cannot be converted into what llama.cpp would run."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    name = files[0].name
    mapped = set(GGUF_CONFIG_MAPPING) - {"general", "tokenizer"}
    require(
        metadata.parts == len(files),
        f"'{name}' is one of {metadata.parts} parts of a model: name them as in MODEL-00001-of-{metadata.parts:05}.gguf"
        ", or join them with llama-gguf-split --merge FIRST_PART WHOLE.gguf",
    )
    require(
        SPELLINGS.get(metadata.architecture, metadata.architecture) in mapped,
        f"'{name}' has the architecture '{metadata.architecture}', which cannot be converted: {INSTEAD}; known "
        f"architectures: {', '.join(sorted(mapped))}",
    )
    require(bool(metadata.tokenizer), f"'{name}' holds no tokenizer: {INSTEAD}")
    unknown = {tensor for tensor in metadata.tensors if tensor.startswith("rope_factors_")}
    require(not unknown, f"'{name}' scales rotary frequencies by {', '.join(sorted(unknown))}: {INSTEAD}")


def _text(reader: "GGUFReader", key: str) -> str:
    field = reader.get_field(key)
    return "" if field is None else str(field.contents())


DIGIT_BY_DIGIT = frozenset({"codeshell", "command-r", "exaone", "minerva-7b", "refact", "smollm", "starcoder"})
"""Rules that separate every digit from its neighbours, and then split as GPT-2 does."""
AS_GPT_2 = frozenset(
    {"", "default", "gpt-2", "jais", "jina-de", "jina-es", "jina-v2-de", "jina-v2-es", "mpt", "olmo", "phi-2"}
    | {"roberta-bpe", "trillion"}
)
"""Rules under which transformers' tokenizer is right as it is."""
AS_QWEN_2 = frozenset({"qwen2", "deepseek-r1-qwen"})
"""Rules that every version of transformers knows for Qwen's architectures."""
LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The parameters, beside `factor`, of all published models with Llama 3's scaling; the file holds its result alone."""
PLAIN_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})
"""Architectures whose tensors and weights correspond one to one."""


def require_all_weights(name: str, weights: Set[str], tensors: Set[str], missing: list[str]) -> None:
    """Raise SkitError if transformers filled weights at random, or if the file's tensors are not those of the model.

    `tensors` are named like the weights; they are empty for an architecture whose tensors are not the weights.
    """
    missing = missing or sorted(weights - tensors if tensors else ())
    require(not missing, f"'{name}' lacks tensors: {min(missing, default='')} would be random; {INSTEAD}")
    unknown = tensors - weights
    require(
        not unknown,
        f"'{name}' holds tensors that its architecture lacks in transformers: {', '.join(sorted(unknown))}; {INSTEAD}",
    )


def correct_rope(name: str, config: Any, metadata: Metadata) -> None:
    """Write the scaling of rotary frequencies that the file states into a configuration."""
    scaling = _scaling(config, metadata)
    if scaling is None:
        return
    rope = getattr(config, "rope_parameters", None) or {}
    kind = scaling["rope_type"]
    require("rope_theta" in rope, f"'{name}' scales rotary frequencies ({kind}) of a kind that is not known: {INSTEAD}")
    if rope.get("rope_type", "default") == "default":
        config.rope_parameters = {"rope_theta": rope["rope_theta"], **scaling}
    if metadata.rope_factors:
        _require_factors(name, config, metadata.rope_factors)


def _scaling(config: Any, metadata: Metadata) -> dict[str, Any] | None:
    """Return rope parameters in the names of transformers; None without scaling."""
    if metadata.rope_factors and max(metadata.rope_factors) > 1:
        return {"rope_type": "llama3", "factor": max(metadata.rope_factors), **LLAMA_3}
    stated = metadata.rope_scaling
    kind = str(stated.get("type", "none"))
    factor = float(stated.get("factor", 1))
    if kind == "none" or factor == 1:
        return None
    if kind == "linear":
        return {"rope_type": kind, "factor": factor}
    if kind != "yarn":
        raise SkitError(f"rotary frequencies scaled by '{kind}' cannot be converted: {INSTEAD}")
    length = stated.get("original_context_length", config.max_position_embeddings)
    own_names = {"attention_factor": "attn_factor", "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
    others = {name: float(stated[own]) for name, own in own_names.items() if own in stated}
    if "attention_factor" in others:  # llama.cpp multiplies it by the factor that transformers takes without one
        others["attention_factor"] *= 1 + 0.1 * log(factor)
    return {"rope_type": kind, "factor": factor, "original_max_position_embeddings": int(length), **others}


def _require_factors(name: str, config: Any, factors: tuple[float, ...]) -> None:
    """Raise SkitError if the scaling of a configuration does not divide the frequencies by the file's factors."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    exponents = torch.arange(len(scaled)) / len(scaled)
    plain = config.rope_parameters["rope_theta"] ** -exponents.double()
    require(
        len(factors) == len(scaled)
        and torch.allclose(plain / scaled.double(), torch.tensor(factors, dtype=torch.float64), rtol=1e-3),
        f"'{name}' scales rotary frequencies by factors that are not Llama 3's: {INSTEAD}",
    )


def correct_ends(generation: Any, metadata: Metadata) -> None:
    """Let the tokens that end a turn or a message end an answer too, as in llama.cpp."""
    ends = generation.eos_token_id
    own = set(ends) if isinstance(ends, list) else {ends} - {None}
    if own | set(metadata.end_tokens):
        generation.eos_token_id = sorted(own | set(metadata.end_tokens))


def correct_tokenizer(name: str, tokenizer: Any, metadata: Metadata) -> None:
    """Let a tokenizer begin, end and split texts as the file says."""
    if metadata.tokenizer == "gpt2":
        _correct_splitting(name, tokenizer, metadata)
    if metadata.end_token is not None:  # transformers 5.17 takes its architecture's default
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(metadata.end_token)
    if metadata.adds_bos:
        _add_bos(tokenizer)


def _correct_splitting(name: str, tokenizer: Any, metadata: Metadata) -> None:
    from tokenizers import pre_tokenizers

    rule = metadata.text_splitting
    if rule in DIGIT_BY_DIGIT:
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        )
        return
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:  # before 5.18, transformers went by the architecture alone
        is_known = rule in AS_QWEN_2 and metadata.architecture.startswith("qwen")
        advice = f"{INSTEAD}, or install transformers 5.18 or newer, which knows more rules"
    else:
        is_known, advice = rule in GGUF_PRE_TOKENIZER_SPLITS, INSTEAD
    require(
        is_known or rule in AS_GPT_2,
        f"'{name}' splits text by the rule '{rule}', which is not known here: {advice}",
    )


def _add_bos(tokenizer: Any) -> None:
    """Let a tokenizer put the beginning-of-sequence token first, which transformers does not read from the file."""
    from tokenizers.processors import TemplateProcessing

    bos = tokenizer.bos_token
    bos_id = tokenizer.bos_token_id
    if bos_id is None or tokenizer("a")["input_ids"][:1] == [bos_id]:
        return
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, bos_id)]
    )


def drop_added_tokens(path: Path, vocabulary: int) -> None:
    """Remove tokens that the model does not have: transformers adds a default for one that a file does not name."""
    content = json.loads(path.read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < vocabulary]
    path.write_text(json.dumps(content, ensure_ascii=False))
