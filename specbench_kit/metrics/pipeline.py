"""Metrics of what only some runs have: steps of a pipeline, and hidden states that a server sent to
a drafter.
"""

from collections.abc import Sequence

import numpy as np

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.latency import distribution, inter_token_gaps, phases
from specbench_kit.metrics.rounds import Metrics, RequestGroup
from specbench_kit.metrics.statistics import ratio_of_sums
from specbench_kit.runs.document import HiddenStates


def time_between_tokens(records: Sequence[RequestRecord]) -> Metrics:
    """Return mean and percentiles of the time between tokens (TBT), in seconds."""
    return distribution(inter_token_gaps(RequestGroup(records).rounds))


def expected_steps(stages: int, hit_rate: float) -> float:
    """Return the expected steps per token if the true token is in flight with probability
    `hit_rate` each time.

    A hit yields its own successor one step later, a miss refills all stages.
    """
    return 1 + (1 - hit_rate) * (stages - 1)


def published_steps(stages: int, hit_rate: float) -> float:
    """Return the expected steps per token by SpecPipe's Eq. 2, which counts the step of a miss
    twice.
    """
    return 1 + (1 - hit_rate) * stages


def summarise_pipeline(records: Sequence[RequestRecord], stages: int) -> Metrics:
    """Return hit rate, stalls, steps per token with what the hit rate predicts, and seconds per
    step by phase.

    A request's first token arrives when the pipeline is full for the first time, so it counts in no
    steps per token.
    """
    rounds = RequestGroup(records).rounds
    steps, tokens, fills = (int(rounds.sum(column)) for column in ("steps", "committed", "rounds"))
    hit_rate = ratio_of_sums(rounds.sum("accepted"), tokens)
    # The draft model reads prompts outside of the steps.
    step_phases = {
        phase: busy_s
        for phase, busy_s in phases(rounds)["phase_seconds"].items()
        if phase != "prefill"
    }
    return {
        "stages": stages,
        "hit_rate": hit_rate,
        "tbt": time_between_tokens(records),
        "steps": steps,
        "fills": fills,
        "stalls": steps - tokens,
        "stalls_of_fills": fills * (stages - 1),
        "steps_per_token": ratio_of_sums(
            steps - rounds.requests * stages, tokens - rounds.requests
        ),
        "expected_steps_per_token": None if hit_rate is None else expected_steps(stages, hit_rate),
        "published_steps_per_token": None
        if hit_rate is None
        else published_steps(stages, hit_rate),
        "step_s": {phase: ratio_of_sums(busy_s, steps) for phase, busy_s in step_phases.items()},
    }


def summarise_states(records: Sequence[RequestRecord], hidden_states: HiddenStates) -> Metrics:
    """Return the bytes of hidden states that went down the link; `hidden_states` is that field of
    `run.json`.

    A verdict brings the states of the token before the draft and of the accepted tokens, the first
    verdict also those of the prompt; each answer of a pipeline brings the states of one token.
    """
    group = RequestGroup(records)
    rounds = group.rounds
    bytes_per_token = hidden_states.bytes_per_token
    sent_tokens = np.where(rounds["steps"] > 0, rounds["committed"], rounds["accepted"] + 1).sum()
    prompt_bytes = bytes_per_token * sum(len(record.prompt_ids) - 1 for record in group.finished)
    return {
        "layers": list(hidden_states.layers),
        "bytes_per_token": bytes_per_token,
        "bytes": prompt_bytes + bytes_per_token * float(sent_tokens),
        "prompt_bytes": prompt_bytes,
    }
