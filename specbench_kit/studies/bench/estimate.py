"""How long a benchmark of many methods will take, from a few tokens of each."""

from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.clock import read_processor_time
from specbench_kit.studies.bench.conversations import Conversation
from specbench_kit.studies.bench.opening import turns
from specbench_kit.studies.bench.workbench import Workbench

TOKENS = 8


def seconds(bench: Workbench, datasets: list[LoadedDataset]) -> float:
    """Of this machine's time, if every answer is as long as it may be and a batch is no faster than one request."""
    prompt = min((one for dataset in datasets for one in dataset.prompts), key=lambda one: len(one.turns[0]))
    request = Conversation(prompt, bench.pair.tokenizer, TOKENS).next_request()
    assert request is not None
    per_token_s = 0.0
    for method in bench.lanes.values():
        if method.needs_reference:
            continue
        engine, before, produced = bench.engine(method), read_processor_time(), 0
        engine.submit(request)
        while not engine.idle:
            produced += sum(len(record.output_ids) for record in engine.step())
        per_token_s += read_processor_time().since(before).wall_s / max(1, produced)
    asked = sum(turns(dataset) for dataset in datasets) * bench.settings.repeats
    return per_token_s * bench.settings.max_new_tokens * asked
