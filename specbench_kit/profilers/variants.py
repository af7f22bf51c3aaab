"""Architectures that are derived from a target's: what drafts for it, and the target in fewer bits.

Their names are those of a target with a prefix, such as `eagle3:llama3.1-8b` or `fp8:qwen3-32b`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from msgspec import structs

from specbench_kit.profilers.architectures import Architecture, Family, bundled_architectures

Launched = Literal["draft model", "head", "block"]
"""What drafts beside a target, by how an engine launches it."""
EAGLE3_WORDS = 32000
"""The words that an EAGLE-3 head gives logits for, the most frequent ones of the target's."""
EAGLE3_STATES = 3
"""The hidden states of a target that an EAGLE-3 head reads: of a low, a middle and a high layer."""
BLOCK_LAYERS = 5
BLOCK_STATES = 5
BLOCK_TOKENS = 16
"""Layers of a block drafter, the target's hidden states that it reads, and the tokens that one of
its forwards drafts (DFlash, its drafter for Qwen3-8B).
"""
MIXTURE_EAGLE3_WIDTHS = 6
MIXTURE_BLOCK_WIDTHS = 3
"""The inner size of a drafter's dense feed-forward layers in widths of a target that is a mixture.

EAGLE-3: those of SpecForge for gpt-oss, Qwen3-30B-A3B and Qwen3-235B-A22B have six, for DeepSeek V3
5.7, for Llama 4 Scout 6.4, for Qwen3-Next eight. Block: that for Qwen3.5-35B-A3B has three.
"""
LATENT_HEAD_DIM = 128
LATENT_KV_HEADS = 8
"""The heads of a drafter whose target has latent attention, which it has not (SpecForge's for
DeepSeek V3).
"""


def eagle3(target: Architecture) -> Architecture:
    """Return an EAGLE-3 head: a layer that attends over embedding and state, 2 h wide, and an output
    layer of its own.

    The target's three hidden states are projected to one of its width (EAGLE-3, Li et al. 2025).
    """
    inner = _inner(target, MIXTURE_EAGLE3_WIDTHS)
    head = _plain_layers(target, 1, inner)
    width = target.hidden_size
    # Queries, keys and values are made of 2 h in place of h numbers; of both, h are counted by the
    # layer itself.
    wider = width * head.head_dim * (head.heads + 2 * head.kv_heads)
    return structs.replace(
        head,
        vocabulary=min(EAGLE3_WORDS, target.vocabulary),
        beside_layers=EAGLE3_STATES * width * width + wider,
        borrowed_tables=1,
    )


def eagle(target: Architecture) -> Architecture:
    """Return a head of the first EAGLE: one layer after a projection of embedding and state from 2 h
    to h, with the target's embeddings and output layer (EAGLE, Li et al. 2024).
    """
    return structs.replace(
        _plain_layers(target, 1, _inner(target, MIXTURE_EAGLE3_WIDTHS)),
        beside_layers=2 * target.hidden_size**2,
        borrowed_tables=2,
    )


def mtp(target: Architecture) -> Architecture:
    """Return a layer for multi-token prediction: one of the target's, after a projection of
    embedding and state from 2 h to h, and the target's output layer (DeepSeek-V3, section 2.2).
    """
    return structs.replace(
        target,
        layers=1,
        dense_layers=0,
        window=0,
        windowed_layers=0,
        sparse_layers=min(1, target.sparse_layers),
        index_layers=min(1, target.index_layers),
        linear_layers=0,
        linear_key_heads=0,
        linear_value_heads=0,
        linear_key_dim=0,
        linear_value_dim=0,
        linear_convolution=0,
        beside_layers=2 * target.hidden_size**2,
        borrowed_tables=1 if target.tied else 2,
    )


def block(target: Architecture) -> Architecture:
    """Return a block drafter: five layers of the target's width, one forward of which drafts a whole
    block with the target's embeddings and output layer (DFlash).
    """
    return structs.replace(
        _plain_layers(target, BLOCK_LAYERS, _inner(target, MIXTURE_BLOCK_WIDTHS)),
        beside_layers=BLOCK_STATES * target.hidden_size**2,
        borrowed_tables=2,
        tokens_per_forward=BLOCK_TOKENS,
    )


def _inner(target: Architecture, widths: int) -> int:
    """Return the inner size of a drafter's feed-forward layers: the target's, if that is dense."""
    return widths * target.hidden_size if target.experts else target.intermediate_size


def _plain_layers(target: Architecture, layers: int, intermediate_size: int) -> Architecture:
    """Return dense layers of the target's width with its heads, in 16 bits, as drafters are
    published.
    """
    latent = bool(target.latent_rank)
    family: Family = "llama"
    return Architecture(
        family=family,
        hidden_size=target.hidden_size,
        layers=layers,
        heads=target.hidden_size // LATENT_HEAD_DIM if latent else target.heads,
        kv_heads=LATENT_KV_HEADS if latent else target.kv_heads,
        head_dim=LATENT_HEAD_DIM if latent else target.head_dim,
        intermediate_size=intermediate_size,
        vocabulary=target.vocabulary,
        tied=False,
        max_positions=target.max_positions,
    )


@dataclass(frozen=True, slots=True)
class Variant:
    """A rule that makes an architecture of a target's; `launched` is what drafts beside the target as
    an engine launches it, None if the result is the target in other bits.
    """

    title: str
    of: Callable[[Architecture], Architecture]
    launched: Launched | None = None

    @property
    def drafts(self) -> bool:
        """Whether the result drafts for the target."""
        return self.launched is not None


VARIANTS: dict[str, Variant] = {
    "eagle": Variant("EAGLE head", eagle, "head"),
    "eagle3": Variant("EAGLE-3 head", eagle3, "head"),
    "mtp": Variant("layer for multi-token prediction", mtp, "head"),
    "block": Variant("block drafter", block, "block"),
    # 4 bits with a scale of 16 bits for every 128 weights, as AWQ and GPTQ store them.
    "4bit": Variant("clone in 4 bits (AWQ, GPTQ)", lambda target: target.with_weight_bits(4.125)),
    # llama.cpp's formats, as its files of 1 to 70 B weights come out on average.
    "q8_0": Variant(
        "weights in llama.cpp's Q8_0", lambda target: target.with_weight_bits(8.5, table_bits=8.5)
    ),
    # Q4_K_M keeps the output layer in Q6_K.
    "q4_k_m": Variant(
        "weights in llama.cpp's Q4_K_M",
        lambda target: target.with_weight_bits(4.85, table_bits=6.56),
    ),
    "fp8": Variant(
        "weights in FP8, multiplied in it", lambda target: target.with_weight_bits(8.0, "float8")
    ),
    # 4 bits with a scale of 8 bits for every 32 weights, and for every 16 of them.
    "mxfp4": Variant("weights in MXFP4", lambda target: target.with_weight_bits(4.25)),
    "nvfp4": Variant(
        "weights in NVFP4, multiplied in FP4",
        lambda target: target.with_weight_bits(4.5, "float4"),
    ),
}
"""What a prefix makes of the target that follows it."""


def split_variant(name: str) -> tuple[str, str] | None:
    """Return the prefix and the target of a name such as `eagle3:qwen3-32b`; None without a known
    prefix.
    """
    prefix, colon, target = name.partition(":")
    return (prefix.lower(), target) if colon and prefix.lower() in VARIANTS else None


def find_architecture(name: str) -> Architecture | None:
    """Return the bundled card of that name, or what its prefix makes of one; None if there is
    none.
    """
    if parts := split_variant(name):
        target = find_architecture(parts[1])
        return None if target is None else VARIANTS[parts[0]].of(target)
    return bundled_architectures().get(name.lower())


def describe_architecture(shapes: Architecture) -> str:
    """Return weights, layers, and what is cached of a token, in words; of a drafter its forwards per
    round too.
    """
    active = shapes.active_parameters
    parts = [f"{_billions(shapes.parameters)} weights"]
    if shapes.borrowed_tables:
        parts = [f"{_billions(shapes.parameters)} weights beside the target's"]
    elif shapes.experts:
        parts.append(f"{_billions(active)} of them active")
    if shapes.layer_bits is not None:
        parts.append(f"{shapes.layer_bits:.4g} bits each")
    layers = f"{shapes.layers} layer{'s' if shapes.layers > 1 else ''}"
    kinds = [f"{shapes.windowed_layers} with a window of {shapes.window:,}"] * bool(shapes.window)
    kinds += [f"{shapes.sparse_layers} with {shapes.selected:,} selected tokens"] * bool(
        shapes.selected
    )
    kinds += [f"{shapes.linear_layers} with a state"] * bool(shapes.linear_layers)
    parts.append(f"{layers} ({', '.join(kinds)})" if kinds else layers)
    if shapes.borrowed_tables:
        parts.append(
            f"one forward per round of {shapes.tokens_per_forward} tokens"
            if shapes.tokens_per_forward > 1
            else "a forward per drafted token"
        )
    cached = 2 * (shapes.kv_numbers + shapes.windowed_kv_numbers)
    parts.append(f"{cached / 1e3:,.3g} kB of KV per token in 16 bits")
    return ", ".join(parts)


def _billions(number: int) -> str:
    return f"{number / 1e9:.3g} B" if number >= 1e9 else f"{number / 1e6:.3g} M"
