"""Small models with random weights in files of llama.cpp, whose tokens are single bytes and printable letters."""

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType

WIDTH, HEADS, CONTEXT = 64, 4, 256
LETTERS = range(32, 127)


def write_model(
    path: Path,
    seed: int = 3,
    width: int = WIDTH,
    layers: int = 1,
    disturbed: float = 0.0,
    letters_only: bool = False,
) -> Path:
    """Write a model; a `disturbed` one has the weights of its seed, and noise of this standard deviation on them.

    One with `letters_only` answers with nothing else: no bytes, which a server holds back until a character is whole.
    """
    special = [
        ("<unk>", TokenType.UNKNOWN),
        ("<s>", TokenType.CONTROL),
        ("</s>", TokenType.CONTROL),
    ]
    of_bytes = [(f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256)]
    of_letters = [(chr(letter), TokenType.NORMAL) for letter in LETTERS]
    vocabulary = [*special, *of_bytes, *of_letters]
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // HEADS)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_scores([0.0] * len(vocabulary))
    writer.add_token_types([kind for _, kind in vocabulary])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    random, noise = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    shapes = {"token_embd": (len(vocabulary), width), "output": (len(vocabulary), width)}
    norms = ["output_norm"]
    for layer in (f"blk.{number}" for number in range(layers)):
        shapes |= {f"{layer}.attn_{name}": (width, width) for name in ("q", "k", "v", "output")}
        shapes |= {f"{layer}.ffn_{name}": (2 * width, width) for name in ("gate", "up")}
        shapes[f"{layer}.ffn_down"] = (width, 2 * width)
        norms += [f"{layer}.attn_norm", f"{layer}.ffn_norm"]
    for name, shape in shapes.items():
        weights = random.normal(size=shape)
        if disturbed:
            weights += noise.normal(scale=disturbed, size=shape)
        if letters_only and name == "output":
            weights[: len(vocabulary) - len(LETTERS)] = 0
        writer.add_tensor(f"{name}.weight", weights.astype(np.float32))
    for name in norms:
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
