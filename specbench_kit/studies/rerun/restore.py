"""Restore settings, models and prompts of a run from its `run.json`, each checked by its hash."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.datasets.loading import SAMPLES, leave_out, load
from specbench_kit.deployments.restoring import restore
from specbench_kit.models.catalogue import BUNDLED, locate
from specbench_kit.models.draft_library import AUTO, find_draft
from specbench_kit.models.named import NAMED_PAIRS, Role
from specbench_kit.runs import provenance
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.rerun.options import RerunOptions
from specbench_kit.traces.library import trace_file

RunDescription = Mapping[str, Any]
"""The content of `run.json`."""

OPTIONS = ("dtype", "max_new_tokens", "batch_size", "temperature", "top_p", "top_k", "seed")
OPTIONS_IF_STATED = ("limit", "repeats", "launch", "device", "draft_top_n")
"""Options that a run states only if they apply to it; a replay has no device, for example."""


def restore_settings(run: RunDescription, options: RerunOptions, out: Path, argv: tuple[str, ...]) -> BenchSettings:
    """Return the settings of the run; raise SkitError if it was not decoded or replayed by this program alone."""
    if "config" not in run or "models" not in run or "method" not in run:
        raise SkitError("run.json names no method, models and settings: only runs of skit bench can be run again")
    if "imported" in run:
        raise SkitError(f"the run was imported from {run['imported']['tool']}, which would have to run it again")
    if "server" in run:
        raise SkitError("the run was verified by a server, which is not known here: use skit bench --server again")
    config = {name: run["config"][name] for name in OPTIONS}
    config |= {name: run["config"][name] for name in OPTIONS_IF_STATED if name in run["config"]}
    if options.device:
        config["device"] = options.device
    models: dict[str, Any] = {}
    if not is_replay(run):
        models["target"] = options.target or _find_model(run, "target")
        if "draft" in run["models"]:
            models["draft"] = options.draft or _find_draft(run, models["target"])
    return BenchSettings(
        (run["method"],),
        **models,
        **config,
        baseline=run["config"]["baseline"],
        deployment=restore(run["deployment"]) if run.get("deployment") else None,
        out=out,
        argv=argv,
    )


def is_replay(run: RunDescription) -> bool:
    """Return True if the run replayed a trace, so that it loaded no models and no prompts."""
    return "trace" in run


def find_trace(run: RunDescription, replay: Path | None) -> Path:
    """Return the path of the trace that the run replayed, checked by its hash; `replay` is where the user has it."""
    described = run["trace"]
    named = [replay] if replay else [*map(Path, _arguments(run, "--replay")), Path(described["file"])]
    for name in named:
        with suppress(SkitError):  # neither a file nor a bundled trace
            path = trace_file(name)
            if path.is_file() and provenance.hash_file(path) == described["sha256"]:
                return path
    if replay is not None and replay.is_file():
        raise SkitError(f"{replay} is not the trace that the run replayed: name the right one with --replay")
    raise SkitError(f"the run replayed the trace {described['file']}: say where it is with --replay")


def restore_dataset(run: RunDescription, data_dir: Path | None) -> LoadedDataset:
    """Load the run's prompts; raise SkitError if the prompts of that name have changed."""
    described, config = run["dataset"], run["config"]
    limit, seed = config.get("limit"), config["seed"]
    loaded = load(_find_prompts(run, data_dir), data_dir=data_dir, allow_sample=False, limit=limit, seed=seed)
    dataset = leave_out(loaded, frozenset(described.get("left_out") or ()), limit, seed)
    if dataset.digest != described["digest"]:
        raise SkitError(
            f"the prompts of {described['name']} ({dataset.location}) are not those of the run (SHA-256 "
            f"{dataset.digest[:12]}, not {described['digest'][:12]}): name the folder that holds them with --data-dir"
        )
    return replace(dataset, name=described["name"], source=described["source"], location=described["location"])


def require_same_models(run: RunDescription, models: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise SkitError unless the models have the run's content, or its commit if they come from the hub."""
    for role in run["models"]:
        loaded, expected = models[role]["hash"], run["models"][role]["hash"]
        if loaded != expected:
            raise SkitError(
                f"the {role} {models[role]['name']} is not that of the run (hash {loaded[:12]}, not {expected[:12]}): "
                f"name the right one with --{role}"
            )


def _find_model(run: RunDescription, role: Role) -> str:
    """Return the name to load a model by: the bundled one, a folder with the same content, a named pair or a hub id."""
    name = str(run["models"][role]["name"])
    if name == f"{BUNDLED}/{role}":
        return BUNDLED
    for path in map(Path, (*_arguments(run, f"--{role}"), name)):
        with suppress(SkitError):  # a folder without weights
            folder = Path(locate(str(path), role).location) if path.exists() else path
            if folder.is_dir() and provenance.hash_model(folder) == run["models"][role]["hash"]:
                return str(path)
    for pair in NAMED_PAIRS.values():
        if pair.model(role).name == name:
            return pair.name
    if "/" in name:
        return name
    raise SkitError(f"the {role} '{name}' was in a folder that the run does not name: say where with --{role}")


def _find_draft(run: RunDescription, target: str) -> str:
    """Return the name to load the draft model by: `auto` if it is the target's own, else that of `_find_model`."""
    with suppress(SkitError):
        own = find_draft(AUTO, locate(target, "target"))
        if provenance.hash_model(Path(own.location)) == run["models"]["draft"]["hash"]:
            return AUTO
    return _find_model(run, "draft")


def _find_prompts(run: RunDescription, data_dir: Path | None) -> str:
    """Return what to load: the name of the dataset, its bundled sample, or a file of the same name."""
    dataset = run["dataset"]
    if dataset["source"] == "sample":
        return str(SAMPLES / f"{dataset['location']}.jsonl")
    if dataset["source"] != "file":
        return str(dataset["name"])
    files = [data_dir / dataset["location"]] if data_dir else []
    files += [*map(Path, _arguments(run, "--dataset")), Path(dataset["location"])]
    for file in files:
        if file.name == dataset["location"] and file.is_file():
            return str(file)
    raise SkitError(
        f"the prompts were in a file {dataset['location']} in a folder that the run does not name: name the folder "
        "with --data-dir"
    )


def _arguments(run: RunDescription, option: str) -> Sequence[str]:
    """Return the values of an option on the run's command line, as `--option value` or `--option=value`."""
    argv = run.get("argv", [])
    values = [value for name, value in pairwise(argv) if name == option]
    return [*values, *(argument.partition("=")[2] for argument in argv if argument.startswith(f"{option}="))]
