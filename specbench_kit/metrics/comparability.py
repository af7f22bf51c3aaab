"""The properties that runs must share before their numbers may stand in one table."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from msgspec import to_builtins

from specbench_kit.core.typed_json import flat
from specbench_kit.metrics.run_data import BenchmarkRun
from specbench_kit.metrics.setting import (
    describe_inputs,
    describe_options,
    plain_decoding,
    sampling_sentence,
)
from specbench_kit.models.description import ModelDescription
from specbench_kit.runs.document import Compared, compared_settings

LabelledRuns = Sequence[tuple[str, BenchmarkRun]]
Property = Callable[[BenchmarkRun], str]

NOT_STATED = "not stated"
MODELLED = "modelled"
"""The text in place of a machine's property for runs on modelled time."""
DATASET = "dataset"
"""The name of the difference between methods that did not all run on the same datasets."""
MOST_NAMED = 3
"""Differences that a refusal names."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A property in which runs differ; `line` says which run has which of its `values`."""

    name: str
    values: Sequence[str]
    line: str

    @property
    def summary(self) -> str:
        """The first two values, in the order of the runs, and the number of the others."""
        more = len(self.values) - 2
        return (
            f"{self.name}: {' / '.join(self.values[:2])}{f' and {more} more' if more > 0 else ''}"
        )


FORCE = "give runs of one setting, or all of them with --force, which names every difference"


def refusal(differences: Sequence[Difference], remedy: str = FORCE) -> str:
    """Return in a line in what runs differ, the settings first that all of them state, and what to
    do.
    """
    ordered = sorted(differences, key=lambda difference: NOT_STATED in difference.values)
    named = "; ".join(difference.summary for difference in ordered[:MOST_NAMED])
    more = len(ordered) - MOST_NAMED
    others = f"; and in {more} more {'property' if more == 1 else 'properties'}" if more > 0 else ""
    return f"these runs cannot be compared, they differ in {named}{others}: {remedy}"


def obstacles(runs: LabelledRuns) -> list[Difference]:
    """Return every difference that forbids a comparison: data, models, lengths, batch, sampling,
    clock.
    """
    by_dataset: dict[str, list[tuple[str, BenchmarkRun]]] = {}
    for label, run in runs:
        by_dataset.setdefault(dataset_name(run), []).append((label, run))
    found = [_missing_runs(by_dataset)] if len(by_dataset) > 1 else []
    found += [
        _difference(f"prompts of {name}", group, _prompts) for name, group in by_dataset.items()
    ]
    found += [
        _stated_difference(f"tokens of the prompts of {name}", group, _tokens)
        for name, group in by_dataset.items()
    ]
    found += [_difference(name, runs, value) for name, value in DECISIVE.items()]
    found.append(_stated_difference("draft model", runs, _draft_model))
    found.append(
        _stated_difference("baseline", runs, lambda run: plain_decoding(run.fields) or NOT_STATED)
    )
    return [difference for difference in [*found, _deployments(runs)] if difference]


def remarks(runs: LabelledRuns) -> list[str]:
    """Return a line for every difference that changes time but may be the very subject of the
    comparison.
    """
    found = [_difference(name, runs, value) for name, value in NOTABLE.items()]
    found += [_stated_difference(name, runs, value) for name, value in CONDITIONS.items()]
    # Runs of one spec may still differ: in a default that changed, or a predictor that was trained
    # again.
    by_spec: dict[str, list[tuple[str, BenchmarkRun]]] = {}
    for label, run in runs:
        by_spec.setdefault(run.method, []).append((label, run))
    for spec, group in by_spec.items():
        found.append(
            _stated_difference(
                f"options of {spec}", group, lambda run: describe_options(run.fields)
            )
        )
        found.append(
            _stated_difference(f"inputs of {spec}", group, lambda run: describe_inputs(run.fields))
        )
    return [difference.line for difference in found if difference]


def dataset_name(run: BenchmarkRun) -> str:
    """Return the name of the run's dataset; a fixed text if it has none, whose origin is then not
    known.
    """
    return str(run.fields.dataset.name or "unnamed dataset")


def _missing_runs(by_dataset: Mapping[str, LabelledRuns]) -> Difference | None:
    """Return the methods that did not run on all datasets: several datasets need every method on
    each of them.
    """
    labels = {label for runs in by_dataset.values() for label, _ in runs}
    gaps = []
    for name, runs in by_dataset.items():
        missing = labels - {label for label, _ in runs}
        gaps += [f"{label} did not run on {name}" for label in sorted(missing)]
    others = f" and {len(gaps) - 1} more" if len(gaps) > 1 else ""
    return (
        Difference(DATASET, [f"{gaps[0]}{others}"], f"dataset: {', '.join(gaps)}") if gaps else None
    )


def _difference(name: str, runs: LabelledRuns, value: Property) -> Difference | None:
    """Return a difference such as `max_new_tokens: 128 (fixed-k), 96 (threshold)`; None if all runs
    agree.
    """
    by_value: dict[str, list[tuple[str, BenchmarkRun]]] = {}
    for label, run in runs:
        by_value.setdefault(value(run), []).append((label, run))
    if len(by_value) < 2:
        return None
    # A label that has several values is given with its dataset.
    values_of = Counter(label for group in by_value.values() for label in dict(group))
    parts = []
    for text, group in by_value.items():
        names = [
            f"{label} on {dataset_name(run)}" if values_of[label] > 1 else label
            for label, run in group
        ]
        parts.append(f"{text} ({_first_few(names)})")
    return Difference(name, list(by_value), f"{name}: {', '.join(parts)}")


def _stated_difference(name: str, runs: LabelledRuns, value: Property) -> Difference | None:
    """Return the difference among the runs that state a value; those of other tools may not."""
    return _difference(
        name, [(label, run) for label, run in runs if value(run) not in ("", NOT_STATED)], value
    )


def _first_few(labels: Sequence[str], most: int = 3) -> str:
    unique = list(dict.fromkeys(labels))
    return (
        ", ".join(unique)
        if len(unique) <= most
        else f"{', '.join(unique[:most])} and {len(unique) - most} more"
    )


def _prompts(run: BenchmarkRun) -> str:
    dataset = run.fields.dataset
    return f"{dataset.count} prompts, digest {str(dataset.digest)[:12]}"


def _tokens(run: BenchmarkRun) -> str:
    """Return the hash of the prompts' tokens, which depend on the tokenizer and its chat
    template.
    """
    prompts = run.fields.prompts
    return (
        f"hash {sha256(json.dumps(prompts, sort_keys=True).encode()).hexdigest()[:12]}"
        if prompts
        else NOT_STATED
    )


def _model(role: str) -> Property:
    def value(run: BenchmarkRun) -> str:
        model = run.fields.models.get(role) or ModelDescription()
        return f"{_text(model.name)}, hash {_text(model.hash)[:12]}"

    return value


def _draft_model(run: BenchmarkRun) -> str:
    # A run that names its target and no draft model used a method that needs none.
    models = run.fields.models
    return NOT_STATED if "target" in models and "draft" not in models else _model("draft")(run)


def _setting(name: str, compared: Compared) -> Property:
    words = compared.words or _text

    def value(run: BenchmarkRun) -> str:
        return words(getattr(run.fields.config, name))

    return _if_measured(value) if compared.difference == "is named if measured" else value


def _executor(role: str) -> Property:
    return lambda run: _text((run.fields.config.executors or {}).get(role))


def _effective_batch_size(run: BenchmarkRun) -> str:
    requested = run.fields.config.batch_size
    effective = run.fields.config.effective_batch_size
    # A batch of one cannot be smaller, so that runs of other tools need not state it.
    if effective is None and requested == 1:
        effective = 1
    return (
        "as requested"
        if effective == requested
        else f"{_text(effective)} where {requested} was requested"
    )


def _hardware(name: str) -> Property:
    return lambda run: (
        _text(getattr(run.fields.hardware, name, None)) if _is_measured(run) else MODELLED
    )


def _cores(run: BenchmarkRun) -> str:
    counts = [
        f"{count} {word}"
        for key, word in CORES.items()
        if (count := getattr(run.fields.hardware, key, None))
    ]
    return ", ".join(counts) or NOT_STATED


def _if_measured(value: Property) -> Property:
    """Return a property that runs on modelled time do not state, since the machine does not affect
    them.
    """
    return lambda run: value(run) if _is_measured(run) else NOT_STATED


def _version(package: str) -> Property:
    return lambda run: _text((run.fields.versions or {}).get(package))


def _text(value: object) -> str:
    return NOT_STATED if value is None else str(value)


def _is_measured(run: BenchmarkRun) -> bool:
    return run.fields.time_kind != "modelled"


DECISIVE: dict[str, Property] = {
    "target model": _model("target"),
    "engine": lambda run: _text(run.fields.engine and run.fields.engine.name),
    **{
        entry.title: _setting(name, entry)
        for name, entry in compared_settings()
        if entry.difference == "forbids"
    },
    "effective batch size": _effective_batch_size,
    "sampling": lambda run: sampling_sentence(run.fields.config),
    "time": lambda run: _text(run.fields.time_kind),
}
"""Properties in which runs must agree."""
NOTABLE: dict[str, Property] = {
    "device": lambda run: _text(run.fields.config.device) if _is_measured(run) else MODELLED,
    "CPU": _hardware("cpu"),
    "GPU": _hardware("gpu"),
    "threads": _hardware("torch_threads"),
    "git commit": lambda run: _text(run.fields.git_commit)[:12],
}
"""Properties whose differences are reported."""
CORES = {"physical_cores": "cores", "usable_cpus": "usable"}
CONDITIONS: dict[str, Property] = {
    "version of specbench-kit": _version("specbench_kit"),
    "version of torch": _version("torch"),
    "version of transformers": _version("transformers"),
    "uncommitted changes": lambda run: {"True": "yes", "False": "no"}.get(
        str(run.fields.git_dirty), NOT_STATED
    ),
    "operating system": _if_measured(lambda run: _text(run.fields.platform)),
    "cores": _if_measured(_cores),
    "memory in GB": _if_measured(
        lambda run: _text(run.fields.hardware and run.fields.hardware.memory_gb)
    ),
    "executor of the target": _if_measured(_executor("target")),
    "executor of the draft model": _if_measured(_executor("draft")),
    **{
        entry.title: _setting(name, entry)
        for name, entry in compared_settings()
        if entry.difference != "forbids"
    },
}
"""Properties whose differences are reported among the runs that state them."""


def _deployments(runs: LabelledRuns) -> Difference | None:
    """Return the fields in which deployments differ, by name and value."""
    described = {label: flat(to_builtins(run.fields.deployment) or {}) for label, run in runs}
    keys = dict.fromkeys(key for fields in described.values() for key in fields)
    values = []
    for key in keys:
        texts = dict.fromkeys(str(fields.get(key)) for fields in described.values())
        if len(texts) > 1:
            values.append(f"{key} {' / '.join(texts)}")
    if not values:
        return None
    names = _difference("deployment", runs, lambda run: run.fields.deployment_name or "none")
    fields = _first_few(values)
    return names or Difference("deployment", [fields], f"deployment: {fields}")
