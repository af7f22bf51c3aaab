"""Compare the kit's reading of GGUF files with llama.cpp's, type by type, by the logits of the same prompts.

llama.cpp rounds activations before it multiplies them by quantised blocks (to 8 bits for most types); the kit
dequantises a file and rounds the weights to bf16. The file with every tensor dequantised to f32, run by llama.cpp, has
neither rounding: it shows what each of the two costs.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import Bound, Figure, Outcome, Setting, Skipped
from benchmarks.llama_library import LlamaModel, quantise, require_llama_cpp
from specbench_kit.core.errors import SkitError
from specbench_kit.models.catalogue import BUNDLED, locate
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.gguf import converted_folder
from specbench_kit.models.pair import LoadedModel, Pair, load_model, load_pair
from specbench_kit.models.runner import Append, Runner
from specbench_kit.studies.conversations import Conversation

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0")
Logits = Sequence[NDArray[np.float32]]
READING = 1e-4
"""Largest mean divergence, in nats per token, between the kit and llama.cpp on the dequantised file.

Rounding the weights to bf16 is all that differs.
"""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How close two models' next-token distributions are, over all positions of all prompts."""

    divergence: float
    """Mean Kullback-Leibler divergence, in nats per token."""
    same_best: float
    """The share of positions with the same likeliest token."""

    @classmethod
    def between(cls, expected: Logits, actual: Logits) -> "Agreement":
        """Compare logits [positions, vocabulary] prompt by prompt."""
        p, q = (
            torch.from_numpy(np.concatenate(list(rows))).double().log_softmax(-1)
            for rows in (expected, actual)
        )
        divergence = (p.exp() * (p - q)).sum(-1).mean().item()
        return cls(divergence, (p.argmax(-1) == q.argmax(-1)).double().mean().item())


@dataclass(frozen=True, slots=True)
class Comparison:
    """One GGUF file, read by the kit and by llama.cpp."""

    reading: Agreement
    """The kit beside llama.cpp on the dequantised file."""
    same_file: Agreement
    """The kit beside llama.cpp on the file itself."""
    llama_cpp: Agreement
    """llama.cpp on the file itself beside llama.cpp on the dequantised file."""


def compare(path: Path, prompts: Sequence[Sequence[int]], folder: Path) -> Comparison:
    """Run the prompts through the kit and llama.cpp; `folder` takes the dequantised file."""
    from benchmarks import gguf_file

    dequantised = folder / f"{path.stem}-f32.gguf"
    gguf_file.write_dequantised(path, dequantised)
    kit = kit_logits(
        load_model(locate(str(converted_folder(path)), "target"), device="cpu"), prompts
    )
    exact, own = llama_cpp_logits(dequantised, prompts), llama_cpp_logits(path, prompts)
    dequantised.unlink()
    return Comparison(
        Agreement.between(exact, kit), Agreement.between(own, kit), Agreement.between(exact, own)
    )


def kit_logits(loaded: LoadedModel, prompts: Sequence[Sequence[int]]) -> Logits:
    """Return the logits of every position, by the executor that the kit chooses."""
    runner = Runner(make_executor(loaded.model, 1, max(map(len, prompts)), None))
    logits = []
    for prompt in prompts:
        slot = runner.acquire()
        logits.append(
            runner.forward([Append(slot, prompt, keep=len(prompt))])[0].float().numpy().copy()
        )
        runner.release(slot)
    return logits


def llama_cpp_logits(path: Path, prompts: Sequence[Sequence[int]]) -> Logits:
    """Return the logits of every position by llama.cpp, with an f32 cache of keys and values."""
    model = LlamaModel(path, max(map(len, prompts)), exact_cache=True)
    logits = []
    for prompt in prompts:
        model.rewind()
        logits.append(model.forward(prompt, keep=len(prompt)).copy())
    return logits


def real_pair(setting: Setting) -> Pair:
    """Return the target without a draft model; in place of the bundled target, SmolLM2."""
    try:
        return load_pair(
            "smollm2" if setting.target == BUNDLED else setting.target, None, device="cpu"
        )
    except SkitError as error:
        raise Skipped(str(error)) from error


def run(setting: Setting) -> Outcome:
    """Write the model's file in every type with llama.cpp, and compare the logits of the setting's prompts."""
    from benchmarks import gguf_file

    require_llama_cpp()
    pair = real_pair(setting)
    conversations = [Conversation(prompt, pair.tokenizer, 1) for prompt in setting.dataset.prompts]
    prompts = [
        request.prompt_ids for request in (talk.next_request() for talk in conversations) if request
    ]
    figures: list[Figure] = []
    with TemporaryDirectory() as name, patch.dict(os.environ, SKIT_HOME=name):
        folder = Path(name)
        gguf_file.write(pair.target, pair.tokenizer, folder / "source.gguf")
        for kind in KINDS:
            path = folder / f"{kind}.gguf"
            quantise(folder / "source.gguf", path, kind)
            figures += _figures(kind, compare(path, prompts, folder))
            path.unlink()
    return Outcome(
        f"GGUF files of {pair.target.source.label} beside llama.cpp, mean divergence of {len(prompts)} prompts",
        figures,
    )


def _figures(kind: str, result: Comparison) -> list[Figure]:
    reading, same, own = result.reading, result.same_file, result.llama_cpp
    return [
        Figure(
            f"{kind}: kit beside llama.cpp on the file as f32",
            reading.divergence,
            "nats",
            Bound(most=READING),
        ),
        Figure(f"{kind}: kit beside llama.cpp", same.divergence, "nats"),
        Figure(f"{kind}: llama.cpp beside itself on the file as f32", own.divergence, "nats"),
        Figure(
            f"{kind}: same likeliest token, kit and llama.cpp on the file as f32",
            100 * reading.same_best,
            "%",
        ),
        Figure(f"{kind}: same likeliest token, kit and llama.cpp", 100 * same.same_best, "%"),
    ]
