"""Run directories that are made or taken up again: one writer each, under the conditions in which they were begun."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.deployments.description import describe_time
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import resolved_options
from specbench_kit.models.executors.base import name_of
from specbench_kit.runs import lock, provenance
from specbench_kit.runs.directory import RunDirectory, config_key, find_resumable
from specbench_kit.runs.resumption import require_same_environment
from specbench_kit.studies.bench.conversations import Conversation
from specbench_kit.studies.bench.lanes import BASELINE
from specbench_kit.studies.bench.seen_prompts import count_seen
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.workbench import Workbench

HASH_DIGITS = 16

Runs = dict[str, RunDirectory]


def open_runs(
    settings: BenchSettings, bench: Workbench, datasets: Sequence[LoadedDataset]
) -> tuple[list[Runs], list[str]]:
    """For each dataset every method's run directory: new ones, or all those that were begun together; and remarks.

    From here on no other process can write to them.
    """
    shared = [_describe(settings, bench, dataset) for dataset in datasets]
    methods = [describe_method(spec, method) for spec, method in bench.methods.items()]
    sizes = [{"effective_batch_size": bench.engine(method).effective_batch_size} for method in bench.methods.values()]
    described = [
        {**about, **_seen(dataset, method, bench), **shown, **bench.sent(method), "config": {**about["config"], **size}}
        for dataset, about in zip(datasets, shared, strict=True)
        for method, shown, size in zip(bench.methods.values(), methods, sizes, strict=True)
    ]
    if settings.resume:
        found = find_resumable(settings.out, [config_key(run) for run in described])
    else:
        found = [RunDirectory.create(settings.out, run) for run in described]
    notes = take_up(found, described[0], force=settings.force)
    count = len(bench.methods)
    runs = [dict(zip(bench.methods, found[at : at + count], strict=True)) for at in range(0, len(found), count)]
    return runs, notes


def describe_method(spec: str, method: Method) -> dict[str, Any]:
    """What `run.json` says of the method: spec and resolved options, less folders of this machine, and what it uses."""
    options = {
        name: provenance.without_folders(value) if isinstance(value, str) else value
        for name, value in resolved_options(spec).items()
    }
    uses = method.uses()
    return {"method": provenance.without_folders(spec), "options": options, **({"uses": uses} if uses else {})}


def _describe(settings: BenchSettings, bench: Workbench, dataset: LoadedDataset) -> dict[str, Any]:
    """The content of `run.json`, less the method."""
    target = bench.pair.target.model
    options = ("max_new_tokens", "batch_size", "temperature", "top_p", "top_k", "seed", "limit", "repeats")
    return {
        "dataset": dataset.describe(),
        "models": bench.models,
        "config": {
            **{name: getattr(settings, name) for name in options},
            "baseline": BASELINE in bench.lanes,
            "device": str(target.device),
            "dtype": str(target.dtype).removeprefix("torch."),
            "executors": {name: name_of(runner.executor) for name, runner in bench.runners.items()},
            **({"launch": settings.launch} if settings.launch != "virtual" else {}),
            **({"draft_top_n": settings.draft_top_n} if settings.draft_top_n else {}),
        },
        **(bench.server.describe() if bench.server else {}),
        **describe_time(settings.deployment),
        "requests": turns(dataset) * settings.repeats,
        "prompts": {
            prompt.id: _hash_tokens(Conversation(prompt, bench.pair.tokenizer, 1)) for prompt in dataset.prompts
        },
        "sample_reason": dataset.reason,
        **({"left_out": bench.left_out} if bench.left_out else {}),
        **provenance.collect(settings.argv),
    }


def _seen(dataset: LoadedDataset, method: Method, bench: Workbench) -> dict[str, Any]:
    count = count_seen(dataset, method, bench.heads)
    return {"seen_prompts": count} if count else {}


def _hash_tokens(conversation: Conversation) -> str:
    """Of the first turn as the target reads it: the start of a SHA-256."""
    request = conversation.next_request()
    assert request is not None
    return sha256(repr(request.prompt_ids).encode()).hexdigest()[:HASH_DIGITS]


def turns(dataset: LoadedDataset) -> int:
    """Requests of one method: each turn of a dialogue is one."""
    return sum(len(prompt.turns) for prompt in dataset.prompts)


def take_up(runs: Sequence[RunDirectory], here: Mapping[str, Any], *, force: bool) -> list[str]:
    """Lock interrupted runs and mend their files; a line on each that had to be mended.

    A run that another process writes, or that was begun under other conditions than `here`, is an error; `force`
    passes over the conditions.
    """
    held: list[RunDirectory] = []
    try:
        for run in runs:
            held.append(run)
            lock.acquire(run.path)
            if run.is_partial and not force:
                require_same_environment(run.path.name, run.run, here)
    except SkitError:
        release_locks(held[:-1])
        raise
    dropped = {run.path.name: run.drop_repeated() for run in runs}
    return [f"{name}: lines that stood there twice were dropped: {count}" for name, count in dropped.items() if count]


def release_locks(runs: Sequence[RunDirectory]) -> None:
    """Unlock runs that nothing more is written to."""
    for run in runs:
        lock.release(run.path)
