"""Run directories that are created or resumed: one writer each, under the conditions in which they
were begun.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import OptionValues, recorded_values
from specbench_kit.core.typed_json import stated
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.deployments.description import AS_DRAFTED, describe_range, describe_time
from specbench_kit.methods.spec import describe_method
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.models.catalogue import ModelSource, read_config
from specbench_kit.models.executors.base import name_of
from specbench_kit.models.weights.blocks import read_record
from specbench_kit.runs import provenance
from specbench_kit.runs.directory import RunDirectory, find_resumable
from specbench_kit.runs.document import NumberFormat, RunFields
from specbench_kit.runs.line_file import lock, unlock
from specbench_kit.runs.provenance import Provenance
from specbench_kit.runs.resumption import require_same_environment
from specbench_kit.studies.bench.choice import chosen, describe_choice, describe_tuning
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.unseen_prompts import count_seen
from specbench_kit.studies.bench.workbench import Workbench
from specbench_kit.studies.conversations import Conversation

if TYPE_CHECKING:
    from specbench_kit.models.pair import LoadedModel

HASH_DIGITS = 16
Runs = dict[str, RunDirectory]
"""The run directories of one dataset by method spec."""


def open_runs(
    settings: BenchSettings,
    bench: Workbench,
    datasets: Sequence[LoadedDataset],
    *,
    join: bool = False,
) -> tuple[list[Runs], list[str]]:
    """Create the run directories of every dataset, or resume all those that were begun together.

    `join` goes on with those of an earlier process of the same command. Returned with remarks for the user. From now
    on no other process can write to them.
    """
    described: list[RunFields] = []
    config = _describe_config(settings, bench)
    conditions = provenance.collect(settings.argv, libraries=bench.prompts.grammars.libraries)
    tuning = describe_tuning(settings)
    named = chosen(settings)
    sizes = {
        spec: bench.loop(method).effective_batch_size
        for spec, method in bench.prepared.methods.items()
    }
    for dataset in datasets:
        shared = _describe(settings, bench, dataset, config, conditions)
        for spec, method in bench.prepared.methods.items():
            count = count_seen(dataset, method, bench.prompts.drafts)
            described.append(
                {
                    **shared,
                    **({"seen_prompts": count} if count else {}),
                    **describe_method(spec, method),
                    **tuning.get(spec, {}),
                    **describe_choice(named[spec]),
                    **bench.describe_hidden_states(method),
                    "config": {**shared["config"], "effective_batch_size": sizes[spec]},
                }
            )
    if settings.resume or join:
        directories = find_resumable(settings.out, described)
    else:
        directories = [RunDirectory.create(settings.out, run) for run in described]
    notes = take_up(directories, conditions, force=settings.force)
    remaining = iter(directories)
    count = len(bench.prepared.methods)
    return [
        dict(zip(bench.prepared.methods, islice(remaining, count), strict=True)) for _ in datasets
    ], notes


def count_turns(dataset: LoadedDataset) -> int:
    """Count the requests of one method: each turn of a dialogue is one request."""
    return sum(len(prompt.turns) for prompt in dataset.prompts)


def take_up(runs: Sequence[RunDirectory], conditions: Provenance, *, force: bool) -> list[str]:
    """Lock interrupted runs and repair their files; return a line for each run that had to be
    repaired.

    Raise SkitError if another process writes a run, or if it was begun under other conditions than
    `conditions`, which `force` permits.
    """
    locked: list[RunDirectory] = []
    try:
        for run in runs:
            lock(run.path)
            locked.append(run)
            if run.is_partial and not force:
                require_same_environment(run.path.name, run.run, conditions)
    except SkitError:
        release_locks(locked)
        raise
    dropped = {run.path.name: run.drop_repeated() for run in runs}
    return [f"{name}: dropped {count} duplicate lines" for name, count in dropped.items() if count]


def release_locks(runs: Sequence[RunDirectory]) -> None:
    """Unlock runs to which nothing more is written."""
    for run in runs:
        unlock(run.path)


def _describe_config(settings: BenchSettings, bench: Workbench) -> OptionValues:
    target, draft = bench.pair.target, bench.pair.draft
    here = bench.runners.get("target")  # a target on a server has no runner here
    return {
        **recorded_values(settings),
        "baseline": BASELINE in bench.prepared.lanes,
        "device": str(target.device),
        **(
            {"draft_device": str(draft.device)}
            if draft is not None and draft.device != target.device
            else {}
        ),
        "dtype": str(target.dtype).removeprefix("torch."),
        "executors": {name: name_of(runner.executor) for name, runner in bench.runners.items()},
        **({"products": products} if here and (products := here.executor.products) else {}),
        **({"kernels": kernels} if here and (kernels := here.executor.kernels) else {}),
    }


def _describe(
    settings: BenchSettings,
    bench: Workbench,
    dataset: LoadedDataset,
    config: OptionValues,
    conditions: Provenance,
) -> RunFields:
    """Return the content of `run.json` that all methods share; prompts are hashed as the target
    reads them.
    """
    prompts = {}
    for prompt in dataset.prompts:
        request = Conversation(prompt, bench.pair.tokenizer, 1).next_request()
        assert request is not None
        prompts[prompt.id] = sha256(repr(request.prompt_ids).encode()).hexdigest()[:HASH_DIGITS]
    return {
        "dataset": stated(dataset.describe()),
        "models": stated(bench.models),
        "number_formats": stated(number_formats(bench.pair.loaded)),
        "config": {**config, **bench.prompts.grammars.describe(dataset.prompts)},
        **bench.describe_server(),
        **describe_time(settings.deployment),
        **describe_range(bench.ends, AS_DRAFTED),
        "requests": count_turns(dataset) * settings.passes,
        "prompts": prompts,
        "sample_reason": dataset.reason,
        **({"left_out": bench.prepared.left_out} if bench.prepared.left_out else {}),
        **conditions,
    }


def number_formats(models: "Mapping[str, LoadedModel]") -> dict[str, NumberFormat]:
    """Return, by the models' names, the format of their weights here (`computed`) and in their
    files (`published`).

    Of a GGUF file it is the type of most of its matrices, which only some executors compute with.
    Heads and synthetic models state none.
    """
    return {
        name: NumberFormat(_short(model.dtype), _published_format(model.source))
        for name, model in models.items()
    }


def _published_format(source: ModelSource) -> str | None:
    """Return the format that the model's own files state: those of a folder in the way of
    `from_pretrained`.
    """
    if source.synthetic:
        return None
    # The folder of a converted GGUF file states the format of the conversion.
    if types := read_record(source.folder).tensor_types:
        # Norms and biases are float32 in nearly every file, and some models have more of these than
        # of matrices.
        matrices = {name: count for name, count in types.items() if name != "F32"} or types
        return f"GGUF {max(matrices, key=matrices.__getitem__)}"
    try:
        config = read_config(source)
    except SkitError:
        return None
    stated = getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None)
    return _short(stated) if stated else None


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
