"""The time that a benchmark of many methods will take, estimated from a few tokens of each."""

from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.clock import read_processor_time
from specbench_kit.studies.bench.conversations import Conversation
from specbench_kit.studies.bench.opening import count_turns
from specbench_kit.studies.bench.workbench import Workbench

TRIAL_TOKENS = 16


def estimate_seconds(bench: Workbench, datasets: list[LoadedDataset]) -> float:
    """Return an upper estimate of the seconds on this machine: every answer is as long as allowed, none is batched."""
    prompts = [prompt for dataset in datasets for prompt in dataset.prompts]
    shortest = min(prompts, key=lambda prompt: len(prompt.turns[0]))
    request = Conversation(shortest, bench.pair.tokenizer, TRIAL_TOKENS).next_request()
    assert request is not None
    per_request_s = per_token_s = 0.0
    for method in bench.lanes.values():
        if method.needs_reference:
            continue
        engine, started = bench.engine(method), read_processor_time()
        engine.submit(request)
        # The first step holds the prompt, which a request has once and not once per TRIAL_TOKENS.
        records = list(engine.step())
        first = read_processor_time()
        while not engine.idle:
            records += engine.step()
        first_s, rest_s = first.since(started).wall_s, read_processor_time().since(first).wall_s
        per_request_s += first_s
        per_token_s += rest_s / max(1, sum(len(record.output_ids) for record in records) - 1)
    requests = sum(count_turns(dataset) for dataset in datasets) * bench.settings.repeats
    return (per_request_s + per_token_s * bench.settings.max_new_tokens) * requests
