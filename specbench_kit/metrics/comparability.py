"""What runs must agree in before their numbers stand in one table."""

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

from specbench_kit.core.nested import flat
from specbench_kit.metrics import setting
from specbench_kit.metrics.run_data import BenchmarkRun
from specbench_kit.metrics.setting import deployment_name, sampling_sentence

Labelled = Sequence[tuple[str, BenchmarkRun]]

NOT_STATED = "not stated"
MODELLED = "modelled"
"""What stands for the machine where no clock was read."""


def obstacles(runs: Labelled) -> list[str]:
    """Where labelled runs differ so that comparing them is refused: data, models, lengths, batch, sampling, clock."""
    by_dataset: dict[str, list[tuple[str, BenchmarkRun]]] = {}
    for label, run in runs:
        by_dataset.setdefault(dataset_name(run), []).append((label, run))
    found = [_coverage(by_dataset)] if len(by_dataset) > 1 else []
    found += [_disagreement(f"prompts of {name}", some, _prompts) for name, some in by_dataset.items()]
    found += [_stated(f"tokens of the prompts of {name}", some, _tokens) for name, some in by_dataset.items()]
    found += [_disagreement(name, runs, value) for name, value in DECISIVE.items()]
    found.append(_stated("draft model", runs, _draft_model))
    return [line for line in [*found, _deployments(runs)] if line]


def remarks(runs: Labelled) -> list[str]:
    """Where they differ in what changes time but can be the very thing that is compared."""
    found = [_disagreement(name, runs, value) for name, value in NOTABLE.items()]
    found += [_stated(name, runs, value) for name, value in CONDITIONS.items()]
    return [line for line in [*found, *_methods(runs)] if line]


def dataset_name(run: BenchmarkRun) -> str:
    """The dataset's name, without which a run has prompts of no known origin."""
    return str(run.dataset.get("name", "unnamed dataset"))


def _coverage(by_dataset: Mapping[str, Labelled]) -> str:
    """Several datasets compare methods only where each method ran on all of them."""
    everyone = {label for some in by_dataset.values() for label, _ in some}
    gaps = [
        f"{label} did not run on {name}"
        for name, some in by_dataset.items()
        for label in sorted(everyone - {one for one, _ in some})
    ]
    return f"dataset: {', '.join(gaps)}" if gaps else ""


def _disagreement(name: str, runs: Labelled, value: Callable[[BenchmarkRun], str]) -> str:
    """`max_new_tokens: 128 (fixed-k), 96 (threshold)`, or nothing where all agree."""
    by_value: dict[str, list[tuple[str, BenchmarkRun]]] = {}
    for label, run in runs:
        by_value.setdefault(value(run), []).append((label, run))
    if len(by_value) < 2:
        return ""
    return f"{name}: {', '.join(f'{one} ({_some(labels)})' for one, labels in _named(by_value).items())}"


def _stated(name: str, runs: Labelled, value: Callable[[BenchmarkRun], str]) -> str:
    """The same among those runs that say anything: older ones, and those of other tools, do not."""
    return _disagreement(name, [(label, run) for label, run in runs if value(run) != NOT_STATED], value)


def _methods(runs: Labelled) -> list[str]:
    """Options, and what was made ready, behind one spec: a default that changed, a predictor trained again."""
    by_spec: dict[str, list[tuple[str, BenchmarkRun]]] = {}
    for label, run in runs:
        by_spec.setdefault(run.method, []).append((label, run))
    return [
        _stated(f"{side} of {spec}", some, show)
        for spec, some in by_spec.items()
        for side, show in {"options": _options, "what it was made ready with": _findings}.items()
    ]


def _named(by_value: Mapping[str, Labelled]) -> dict[str, list[str]]:
    """The labels behind each value, with their dataset where one label is behind several."""
    labels = {one: {label for label, _ in some} for one, some in by_value.items()}
    repeated = {label for label in set().union(*labels.values()) if sum(label in some for some in labels.values()) > 1}
    return {
        one: [f"{label} on {dataset_name(run)}" if label in repeated else label for label, run in some]
        for one, some in by_value.items()
    }


def _some(labels: Sequence[str], most: int = 3) -> str:
    unique = list(dict.fromkeys(labels))
    return ", ".join(unique) if len(unique) <= most else f"{', '.join(unique[:most])} and {len(unique) - most} more"


def _prompts(run: BenchmarkRun) -> str:
    digest, count = run.dataset.get("digest"), run.dataset.get("count")
    return f"{count} prompts, digest {str(digest)[:12]}"


def _tokens(run: BenchmarkRun) -> str:
    """What the tokenizer and its template made of the prompts."""
    found = run.fields.get("prompts")
    return f"hash {sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:12]}" if found else NOT_STATED


def _options(run: BenchmarkRun) -> str:
    return setting.describe_options(run.fields) or NOT_STATED


def _findings(run: BenchmarkRun) -> str:
    return setting.describe_inputs(run.fields) or NOT_STATED


def _model(role: str) -> Callable[[BenchmarkRun], str]:
    def value(run: BenchmarkRun) -> str:
        model = (run.fields.get("models") or {}).get(role) or {}
        return f"{_said(model.get('name'))}, hash {_said(model.get('hash'))[:12]}"

    return value


def _draft_model(run: BenchmarkRun) -> str:
    """Nothing where the run names its models and has no draft: its method needs none."""
    models = run.fields.get("models") or {}
    return NOT_STATED if "target" in models and "draft" not in models else _model("draft")(run)


def _config(name: str) -> Callable[[BenchmarkRun], str]:
    return lambda run: _said((run.fields.get("config") or {}).get(name))


def _decoded_at_once(run: BenchmarkRun) -> str:
    """Whether the run's batches were of the size that was asked for; a batch of one cannot be smaller."""
    config = run.fields.get("config") or {}
    asked = config.get("batch_size")
    found = config.get("effective_batch_size", asked if asked == 1 else None)
    return "as asked" if found == asked else f"{_said(found)} where {asked} was asked"


def _hardware(name: str) -> Callable[[BenchmarkRun], str]:
    return lambda run: _said((run.fields.get("hardware") or {}).get(name)) if _measured(run) else MODELLED


def _cores(run: BenchmarkRun) -> str:
    hardware = run.fields.get("hardware") or {}
    known = [f"{hardware[key]} {word}" for key, word in CORES.items() if hardware.get(key)]
    return ", ".join(known) or NOT_STATED


def _on_machine(value: Callable[[BenchmarkRun], str]) -> Callable[[BenchmarkRun], str]:
    """Nothing where no clock was read, since then the machine decides nothing."""
    return lambda run: value(run) if _measured(run) else NOT_STATED


def _version(package: str) -> Callable[[BenchmarkRun], str]:
    return lambda run: _said((run.fields.get("versions") or {}).get(package))


def _uncommitted(run: BenchmarkRun) -> str:
    dirty = run.fields.get("git_dirty")
    return ("no", "yes")[dirty] if isinstance(dirty, bool) else NOT_STATED


def _said(value: object) -> str:
    return NOT_STATED if value is None else str(value)


def _measured(run: BenchmarkRun) -> bool:
    return run.fields.get("time_kind") != "modelled"


DECISIVE: dict[str, Callable[[BenchmarkRun], str]] = {
    "target model": _model("target"),
    "dtype": _config("dtype"),
    "max_new_tokens": _config("max_new_tokens"),
    "batch size": _config("batch_size"),
    "effective batch size": _decoded_at_once,
    "sampling": lambda run: sampling_sentence(run.fields.get("config") or {}),
    "time": lambda run: _said(run.fields.get("time_kind")),
}
NOTABLE: dict[str, Callable[[BenchmarkRun], str]] = {
    "device": lambda run: _config("device")(run) if _measured(run) else MODELLED,
    "CPU": _hardware("cpu"),
    "GPU": _hardware("gpu"),
    "threads": _hardware("torch_threads"),
    "git commit": lambda run: _said(run.fields.get("git_commit"))[:12],
}
CORES = {"physical_cores": "cores", "usable_cpus": "usable"}
CONDITIONS: dict[str, Callable[[BenchmarkRun], str]] = {
    "version of specbench-kit": _version("specbench_kit"),
    "version of torch": _version("torch"),
    "version of transformers": _version("transformers"),
    "uncommitted changes": _uncommitted,
    "operating system": _on_machine(lambda run: _said(run.fields.get("platform"))),
    "cores": _on_machine(_cores),
    "memory in GB": _on_machine(lambda run: _said((run.fields.get("hardware") or {}).get("memory_gb"))),
    "launch": _on_machine(lambda run: str((run.fields.get("config") or {}).get("launch", "virtual"))),
    "repeats": _config("repeats"),
}
"""Conditions that not every run states."""


def _deployments(runs: Labelled) -> str:
    """The fields in which deployments differ, by name and value."""
    described = {label: flat(run.fields.get("deployment") or {}) for label, run in runs}
    keys = dict.fromkeys(key for fields in described.values() for key in fields)
    differing = [key for key in keys if len({str(fields.get(key)) for fields in described.values()}) > 1]
    if not differing:
        return ""
    names = _disagreement("deployment", runs, lambda run: deployment_name(run.fields) or "none")
    values = [f"{key} {' / '.join(dict.fromkeys(str(f.get(key)) for f in described.values()))}" for key in differing]
    return names or f"deployment: {_some(values)}"
