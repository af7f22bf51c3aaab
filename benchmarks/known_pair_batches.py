"""The known pair in batches beside llama.cpp's server with as many slots. Optional: it needs xllamacpp."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import torch

from benchmarks.common import (
    AUTOREGRESSIVE,
    FIXED_K,
    Bound,
    Figure,
    Outcome,
    Setting,
    Skipped,
    over_rounds,
    take_turns,
)
from benchmarks.known_pair import PAIR, human_eval
from benchmarks.known_pair import answer_all as answer_with_kit
from benchmarks.llama_server import DRAFTING, LlamaServer, require_server
from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.session import Request
from specbench_kit.models.pair import load_pair

SIZES = (2, 4, 8)
METHODS = (AUTOREGRESSIVE, "fixed-k:k=2", FIXED_K)
Batch = Sequence[Request]


def run(setting: Setting) -> Outcome:
    """Time batches of HumanEval's prompts in turns, with and without speculation."""
    require_server()
    try:
        pair = load_pair(PAIR, device="cpu")
    except SkitError as error:
        raise Skipped(str(error)) from error
    prompts = human_eval(setting, pair)
    requests = [
        replace(prompt, id=f"{prompt.id}-{turn}")
        for turn in range(1 + max(SIZES) // len(prompts))
        for prompt in prompts
    ][: max(SIZES)]
    capacity = max(len(request.prompt_ids) for request in requests) + setting.max_new_tokens + 64
    runners = pair.all_runners(max(SIZES), capacity)
    answers: dict[str, Callable[[Batch], int]] = {
        f"kit, {method}": partial(answer_with_kit, pair, runners, method) for method in METHODS
    }
    for mode, speculation in (("plain", ""), ("the draft model", DRAFTING)):
        answers[f"llama.cpp, {mode}"] = LlamaServer(
            pair, capacity, speculation, max(SIZES)
        ).answer_all
    figures = [
        figure for size in SIZES for figure in _of_size(answers, requests[:size], setting.rounds)
    ]
    return Outcome(
        f"{PAIR} in batches beside llama.cpp, {torch.get_num_threads()} threads", figures
    )


def _of_size(answers: dict[str, Callable[[Batch], int]], batch: Batch, rounds: int) -> list[Figure]:
    """Return tokens per second of a batch, its prompts included, and the kit's best beside llama.cpp's."""
    tokens = {name: answer(batch) for name, answer in answers.items()}
    seconds = take_turns(answers, [batch], rounds)
    rates = {name: [tokens[name] / sum(row) for row in rows] for name, rows in seconds.items()}
    figures = [
        over_rounds(f"{len(batch)} requests: {name}", rate, "tokens/s")
        for name, rate in rates.items()
    ]
    best, peer = (
        max(
            (name for name in rates if name.startswith(whose)), key=lambda name: median(rates[name])
        )
        for whose in ("kit", "llama.cpp")
    )
    ratio = [own / theirs for own, theirs in zip(rates[best], rates[peer], strict=True)]
    return [
        *figures,
        over_rounds(f"{len(batch)} requests: {best} / {peer}", ratio, "x", Bound(least=1.0)),
    ]
