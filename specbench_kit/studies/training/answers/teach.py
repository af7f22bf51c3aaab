"""Answers that exist already, such as those of a trace: forward them once and keep what a draft learns from."""

from collections.abc import Sequence

import torch

from specbench_kit.core.errors import require
from specbench_kit.models.runner import Append, Runner, refuse_nan
from specbench_kit.studies.training.answers.generate import TOP
from specbench_kit.studies.training.answers.store import Answer, AnswerStore

TOLERATED = 0.02
"""Largest difference between kept states and those of a fresh forward, as a share of their size.

States are kept in bf16, whose rounding alone gives 0.004, and were computed in batches of other shapes.
"""


@torch.inference_mode()
def teach(runner: Runner, index: int, prompt: Sequence[int], output: Sequence[int], layers: Sequence[int]) -> Answer:
    """Return an answer with the target's likeliest tokens and states at every position of the given text."""
    tokens = [*prompt, *output][:-1]
    slot = runner.acquire()
    forward = runner.forward([Append(slot, tokens, keep=len(tokens))], layers)
    refuse_nan(forward)
    top_logits, top_tokens = forward[0][len(prompt) - 1 :].float().topk(min(TOP, forward[0].shape[-1]))
    states = forward.states(0, layers).bfloat16().cpu() if layers else None
    runner.release(slot)
    return Answer(index, prompt, output, top_tokens.int().cpu(), top_logits.half().cpu(), states)


def require_fresh(store: AnswerStore, runner: Runner, layers: Sequence[int]) -> None:
    """Raise SkitError if the states of a kept answer are not what the target computes now."""
    kept = next(store.read(store.shards[0]), None)
    if kept is None or kept.states is None or not layers:
        return
    fresh = teach(runner, kept.index, kept.prompt, kept.output, layers).states
    assert fresh is not None
    difference = (fresh.float() - kept.states.float()).norm() / fresh.float().norm()
    require(
        float(difference) <= TOLERATED,
        f"the states kept in '{store.folder}' differ from the target's by {100 * float(difference):.1f} %: they are "
        "another model's, or were computed in another number format; delete the folder",
    )
