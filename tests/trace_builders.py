"""Small traces whose statistics are known: each token's own, whichever draft runs into it."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.traces.trace import RequestTrace, TraceFile, TraceHeader
from specbench_kit.traces.writing import TraceWriter

MAX_DRAFT, VOCABULARY = 6, 50
MODELS = {"target": {"name": "big", "hash": "a" * 64}, "draft": {"name": "small", "hash": "b" * 64}}
DRAFT_S, VERIFY_S = 0.002, (0.010, 0.0105, 0.011, 0.0115, 0.012, 0.0125, 0.013)


def made_request(
    name: str,
    length: int = 40,
    prompt: tuple[int, ...] = (1, 2, 3),
    spare: int = MAX_DRAFT + 1,
    seed: int = 0,
) -> RequestTrace:
    """An output whose tokens are drafted right the more often the surer the draft is.

    `spare` tokens of the target's answer beyond the output are on record.
    """
    random = np.random.default_rng(seed)
    positions = length + MAX_DRAFT
    answer = random.integers(0, VOCABULARY, positions)
    own = statistics(random.random(positions) ** 0.5, random)
    right = random.random(positions) < own[:, 0]
    # After a draft's first wrong token it says what the answer has there: that must count for nothing.
    drafted = np.lib.stride_tricks.sliding_window_view(answer, MAX_DRAFT)[:length].astype(np.int32)
    table = np.empty((length, MAX_DRAFT, 5), np.float32)
    for offset in range(length):
        leading = int(np.logical_and.accumulate(right[offset : offset + MAX_DRAFT]).sum())
        table[offset] = statistics(random.random(MAX_DRAFT), random)
        table[offset, : leading + 1] = own[offset : offset + min(leading + 1, MAX_DRAFT)]
        drafted[offset, leading : leading + 1] += VOCABULARY
    answer_ids = answer.tolist()
    return RequestTrace(
        name,
        "test",
        list(prompt),
        answer_ids[:length],
        "length",
        answer_ids[length : length + spare],
        drafted,
        table,
    )


def made_requests(count: int, length: int = 40) -> list[RequestTrace]:
    """Requests of different prompts."""
    return [made_request(f"request-{n}", length, prompt=(n, 1, 2), seed=n) for n in range(count)]


def statistics(confidence: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float32]:
    """Plausible draft statistics [n, 5] around these confidences."""
    noise = random.normal(0, 0.05, len(confidence))
    entropy = np.maximum(0, 2.5 * (1 - confidence) + noise)
    margin = np.clip(1.3 * confidence - 0.3 + noise, 0, confidence)
    return np.stack(
        [confidence, entropy, margin, 2 + confidence + noise, confidence], axis=1
    ).astype(np.float32)


def write_trace(
    path: Path,
    traces: list[RequestTrace],
    models: Any = MODELS,
    dataset: dict[str, object] | None = None,
    draft_s: float = DRAFT_S,
    verify_s: tuple[float, ...] = VERIFY_S,
    machine: list[JsonObject] | None = None,
) -> TraceFile:
    run = {
        "models": models,
        "dataset": dataset or {"name": "made"},
        "config": {"max_new_tokens": 40, "dtype": "float32"},
        **({"machine": machine} if machine else {}),
    }
    max_draft = traces[0].drafted.shape[1] if traces else MAX_DRAFT
    with TraceWriter(
        path, TraceHeader(max_draft, draft_s, verify_s[: max_draft + 1], run)
    ) as writer:
        for trace in traces:
            writer.append(trace)
    return TraceFile(path)
