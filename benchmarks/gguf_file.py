"""Write Llama-architecture models of transformers as GGUF files for llama.cpp."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from specbench_kit.models.pair import LoadedModel

ARCHITECTURE = gguf.MODEL_ARCH.LLAMA


def write(loaded: LoadedModel, tokenizer: Any, path: Path, kind: str = "F32") -> None:
    """Write matrices in a type that the package gguf can write, and the byte-level BPE tokenizer, which splits digits.

    Vectors stay f32.
    """
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[ARCHITECTURE])
    _add_sizes(writer, loaded.text_config)
    _add_tokenizer(writer, tokenizer)
    _add_weights(writer, loaded, GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_sizes(writer: Any, config: Any) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _add_tokenizer(writer: Any, tokenizer: Any) -> None:
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    special = set(tokenizer.all_special_tokens)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)


def write_dequantised(source: Path, path: Path) -> None:
    """Copy a file with every tensor as f32, by the package's own reading of the blocks."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[ARCHITECTURE])
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in (
            "general.architecture",
            "general.file_type",
        ):
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    for tensor in reader.tensors:
        writer.add_tensor(
            tensor.name,
            np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32),
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_weights(writer: Any, loaded: LoadedModel, matrix_type: GGMLQuantizationType) -> None:
    config = loaded.text_config
    names = gguf.get_tensor_name_map(ARCHITECTURE, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in loaded.model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weights = tensor.float().numpy()
        kind = name.split(".")[-2]
        if kind in heads:
            weights = _interleave(weights, heads[kind])
        file_name = names.get_name(name, try_suffixes=(".weight",))
        if weights.ndim > 1:
            blocks = quantize(np.ascontiguousarray(weights), matrix_type)
            writer.add_tensor(file_name, blocks, raw_dtype=matrix_type)
        else:
            writer.add_tensor(file_name, np.ascontiguousarray(weights))


def _interleave(weights: NDArray[Any], heads: int) -> NDArray[Any]:
    """Return the rows of each head as llama.cpp rotates them: pairs are neighbours, not half a head apart."""
    return weights.reshape(heads, 2, -1, weights.shape[1]).swapaxes(1, 2).reshape(weights.shape)
