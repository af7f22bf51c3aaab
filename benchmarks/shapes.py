"""Time forwards of 135 million and 1.2 billion random bf16 weights against reading the bytes of the weights."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.common import (
    Bound,
    Figure,
    Outcome,
    Setting,
    Skipped,
    over_rounds,
    round_ratios,
    take_turns,
)
from specbench_kit.models.executors.base import executors, make_executor
from specbench_kit.models.runner import Append, Runner

SHAPES: dict[str, dict[str, Any]] = {
    "135M": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
    },
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
}
"""The shapes of SmolLM-135M and of Llama-3.2-1B, whose output heads share the embeddings."""
CONTEXT = 64
REPEATS = 3
NATIVE, REFERENCE, READING = "native", "transformers", "reading the weights"


def run(setting: Setting) -> Outcome:
    """Time one token after a short context, in turns with both executors and with plain reading."""
    if NATIVE not in executors.all():
        raise Skipped("the native executor was not compiled")
    figures = [
        figure for name, shape in SHAPES.items() for figure in _figures(name, shape, setting.rounds)
    ]
    threads = torch.get_num_threads()
    return Outcome(
        f"One token of larger shapes, bf16, context {CONTEXT}, {threads} threads", figures
    )


def _figures(name: str, shape: dict[str, Any], rounds: int) -> list[Figure]:
    model = _random(shape)
    contenders: dict[str, Callable[[int], None]] = {
        READING: partial(_read, _in_one_piece(model.parameters()))
    }
    for executor in (NATIVE, REFERENCE):
        contenders[executor] = partial(_forward, *_filled(model, executor))
    seconds = take_turns(contenders, range(REPEATS), rounds)
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return [
        over_rounds(
            f"{name}: native / reading",
            round_ratios(seconds, NATIVE, READING),
            "x",
            Bound(most=1.5),
        ),
        over_rounds(
            f"{name}: transformers / native",
            round_ratios(seconds, REFERENCE, NATIVE),
            "x",
            Bound(least=1),
        ),
        *(
            over_rounds(f"{name}: {contender}", [1000 * min(row) for row in rows], "ms")
            for contender, rows in seconds.items()
        ),
        over_rounds(f"{name}: read", [size / min(row) / 1e9 for row in seconds[READING]], "GB/s"),
    ]


def _random(shape: dict[str, Any]) -> Any:
    config = LlamaConfig(
        **shape, tie_word_embeddings=True, max_position_embeddings=2 * CONTEXT, dtype=torch.bfloat16
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).to(torch.bfloat16).eval().requires_grad_(False)


def _in_one_piece(weights: Iterable[torch.Tensor]) -> NDArray[np.int64]:
    """Return the bytes of all weights in one array: only memory limits how fast it is read."""
    return torch.cat([weight.flatten() for weight in weights]).view(torch.int64).numpy()


def _read(weights: NDArray[np.int64], _repeat: int) -> None:
    """Read every byte once, with as many threads as a forward."""
    parts = np.array_split(weights, torch.get_num_threads())
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(np.max, parts))


def _filled(model: Any, executor: str) -> tuple[Runner, int]:
    """Return a runner and its slot, which holds the context."""
    runner = Runner(make_executor(model, 1, 2 * CONTEXT, model.config.vocab_size, executor))
    slot = runner.acquire()
    runner.forward([Append(slot, range(CONTEXT))])
    runner.commit(slot, range(CONTEXT))
    return runner, slot


def _forward(runner: Runner, slot: int, _repeat: int) -> None:
    runner.forward([Append(slot, [1])])
    runner.commit(slot, [])
