"""A trace of the small server's own target, and a profile of such a server."""

import numpy as np
from live_server import TARGET, VOCABULARY
from tiny_models import plain_greedy, random_prompts

from specbench_kit.traces.trace import RequestTrace

LENGTH, DRAFT = 20, 3
PROMPTS = [
    (str(number), prompt) for number, prompt in enumerate(random_prompts([5, 9], VOCABULARY))
]
MODELS = {"target": {"name": "tiny", "hash": "0"}, "draft": {"name": "tinier", "hash": "1"}}
PROFILE = """
name = "made"
role = "verifier"
device = "cpu"
model = "tiny"
dtype = "float32"
source = "published"
reference = "made up"
date = "2026-01-01"

[coefficients]
form = "interactions"
a_s = 1e-4
b_compute_s = 0.0
b_read_s = 0.0
c_s = 1e-2

[fit.test]
r2 = 0.5
"""
"""Ten times as slow as the server's own scheduler expects."""


def request(
    name: str, prompt: list[int], wrong: int | None = None, length: int = LENGTH
) -> RequestTrace:
    """The target's own answer, drafted with every fourth token wrong; another target's at the token `wrong`."""
    answer = np.array(plain_greedy(TARGET, prompt, length + DRAFT)[0])
    if wrong is not None:
        answer[wrong] = (answer[wrong] + 1) % VOCABULARY
    drafted = np.lib.stride_tricks.sliding_window_view(answer, DRAFT)[:length].astype(np.int32)
    drafted[::4] = (drafted[::4] + 1) % VOCABULARY
    statistics = np.full((length, DRAFT, 5), 0.5, np.float32)
    answer_ids = answer.tolist()
    return RequestTrace(
        name,
        "test",
        prompt,
        answer_ids[:length],
        "length",
        answer_ids[length:],
        drafted,
        statistics,
    )
