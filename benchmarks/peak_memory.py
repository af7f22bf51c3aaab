"""Measure the peak memory of a process that loads real models, and of one with three billion random weights.

`python -m benchmarks.peak_memory FOLDER ...` is that process: it keeps all models and forwards a token with each.
"""

import json
import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from benchmarks.common import Bound, Figure, Outcome, Setting
from benchmarks.process import measure
from specbench_kit.models.catalogue import locate
from specbench_kit.models.gguf import header_of
from specbench_kit.models.named import NAMED_PAIRS, fetched_folder
from specbench_kit.models.pair import load_model
from specbench_kit.models.runner import Append

SLACK, BESIDE_BYTES = 1.25, 400e6
"""The most memory for weights, as a multiple of their size in the files, and for everything else but the KV."""
CONTEXT = 256
THREE_BILLION = Qwen2Config(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=11008,
    num_hidden_layers=36,
    num_attention_heads=16,
    num_key_value_heads=2,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
)
CHUNK = 1 << 24
"""Random weights that are drawn once, and written again and again."""


def run(_: Setting) -> Outcome:
    """Load what was fetched of SmolLM2 and of the Qwen pair, and the shape of three billion weights."""
    figures = []
    for name in ("smollm2", "qwen2.5-coder"):
        folders = [
            folder for model in NAMED_PAIRS[name].models if (folder := fetched_folder(model))
        ]
        if folders:
            figures += _figures(name, folders)
    with TemporaryDirectory() as random_weights:
        write_random(Path(random_weights), THREE_BILLION)
        figures += _figures("3 billion random weights", [Path(random_weights)])
    return Outcome("Peak memory", figures)


def _figures(label: str, folders: list[Path]) -> list[Figure]:
    stored = sum(file.stat().st_size for folder in folders for file in folder.glob("*.safetensors"))
    names = [str(folder) for folder in folders]
    usage = measure([sys.executable, "-m", "benchmarks.peak_memory", *names])
    kv = sum(_kv_bytes(folder) for folder in folders)
    allowed = SLACK * stored + kv + BESIDE_BYTES
    return [
        Figure(
            f"{label}: peak, with {stored / 1e9:.2f} GB of weights", usage.peak_bytes / 1e9, "GB"
        ),
        Figure(
            f"{label}: peak over what is allowed", usage.peak_bytes / allowed, "", Bound(most=1)
        ),
        Figure(f"{label}: loading and a first forward", usage.seconds, "s"),
    ]


def _kv_bytes(folder: Path) -> int:
    """Return the bytes of KV in float32 for one request."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    heads, layers = config["num_key_value_heads"], config["num_hidden_layers"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(2 * 4 * layers * heads * head_dim * CONTEXT)


def write_random(folder: Path, config: Any) -> None:
    """Write a model of random weights in bf16."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = {name: list(weight.shape) for name, weight in model.named_parameters()}
    drawn = torch.randn(CHUNK).mul(0.02).bfloat16().view(torch.uint8).numpy().tobytes()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header_of(shapes))
        left = sum(2 * prod(shape) for shape in shapes.values())
        while left:
            left -= file.write(drawn[: min(left, len(drawn))])
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)


def load(folders: Sequence[str]) -> None:
    """Load models, keep them, and forward a token with each."""
    runners = [load_model(locate(folder, "target")).runner(1, CONTEXT, None) for folder in folders]
    for runner in runners:
        runner.forward([Append(runner.acquire(), [1])])


if __name__ == "__main__":
    load(sys.argv[1:])
