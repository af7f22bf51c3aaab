"""Compare the kit with `generate` of transformers: same models, prompts, draft length and process."""

from collections.abc import Callable
from typing import Any

import torch
from transformers.utils import logging

from benchmarks.common import (
    AUTOREGRESSIVE,
    FIXED_K,
    Bound,
    Figure,
    Outcome,
    Seconds,
    Setting,
    over_rounds,
    round_ratios,
    take_turns,
)
from specbench_kit.decoding.session import Request

Decode = Callable[[Request], list[int]]

GENERATE, ASSISTED = "generate", "generate, assisted"
PAIRINGS = ((AUTOREGRESSIVE, GENERATE, 1.0), (FIXED_K, ASSISTED, 1.4))
"""The kit's method, its counterpart in transformers, and the speedup that it must reach."""


def run(setting: Setting) -> Outcome:
    """Time both; the bounds are for the executor that the kit chooses by default, others show the gain of the loop."""
    logging.set_verbosity_error()
    contenders = _transformers(setting) | _kit(setting)
    seconds = take_turns(contenders, setting.requests, setting.rounds)
    figures = []
    for executor in setting.executor_names:
        for method, counterpart, least in PAIRINGS:
            bound = Bound(least=least) if executor == setting.executor_names[0] else None
            label = f"{method} on {executor}, times faster than {counterpart}"
            figures.append(
                over_rounds(
                    label, round_ratios(seconds, counterpart, f"{method} on {executor}"), "x", bound
                )
            )
    return Outcome(
        "Against transformers", [*figures, _identical(setting, contenders), *_speeds(seconds)]
    )


def _kit(setting: Setting) -> dict[str, Decode]:
    def decode(executor: str, method: str) -> Decode:
        runners = setting.runners(executor)
        return lambda request: setting.decode(runners, method, [request])[0][0].output_ids

    methods = (AUTOREGRESSIVE, FIXED_K)
    return {
        f"{method} on {name}": decode(name, method)
        for name in setting.executor_names
        for method in methods
    }


def _transformers(setting: Setting) -> dict[str, Decode]:
    """Run greedy `generate`; the draft model's generation config holds the settings of assisted generation."""
    target, draft = setting.pair.target.model, setting.pair.needed_draft.model
    draft.generation_config.update(
        num_assistant_tokens=4,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )

    def generate(request: Request, **options: Any) -> list[int]:
        ids = torch.tensor([request.prompt_ids], device=target.device)
        with torch.inference_mode():
            output = target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request.max_new_tokens,
                do_sample=False,
                **options,
            )
        new: list[int] = output[0, ids.shape[1] :].tolist()
        return new

    return {GENERATE: generate, ASSISTED: lambda request: generate(request, assistant_model=draft)}


def _identical(setting: Setting, contenders: dict[str, Decode]) -> Figure:
    """Return the share of outputs that equal those of plain `generate`."""
    expected = [contenders[GENERATE](request) for request in setting.requests]
    kit = [decode for name, decode in contenders.items() if name != GENERATE]
    equal = [
        decode(r) == w for decode in kit for r, w in zip(setting.requests, expected, strict=True)
    ]
    return Figure(
        "outputs of all the others equal to generate",
        100 * sum(equal) / len(equal),
        "%",
        Bound(least=100),
    )


def _speeds(seconds: Seconds) -> list[Figure]:
    return [
        over_rounds(f"{name}: one pass", [sum(row) for row in rows], "s")
        for name, rows in seconds.items()
    ]
