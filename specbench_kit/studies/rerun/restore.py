"""From a run's `run.json` back to what was asked: settings, models and prompts, each checked by its hash."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.datasets.loading import SAMPLES, leave_out, load
from specbench_kit.deployments.restoring import restore
from specbench_kit.models.catalogue import BUNDLED, Role
from specbench_kit.runs import provenance
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.rerun.options import RerunOptions

Fields = Mapping[str, Any]

OPTIONS = ("dtype", "max_new_tokens", "batch_size", "temperature", "top_p", "top_k", "seed")
NEWER_OPTIONS = ("limit", "repeats", "launch", "device", "draft_top_n")
"""Those that not every run names."""


def restore_settings(run: Fields, places: RerunOptions, out: Path, argv: tuple[str, ...]) -> BenchSettings:
    """What the run was asked to do; an imported run was never asked here."""
    if "config" not in run or "models" not in run or "method" not in run:
        raise SkitError("run.json names no method, models and settings: only runs of skit bench can be run again")
    if "imported" in run:
        raise SkitError(f"the run was imported from {run['imported']['tool']}, which would have to run it again")
    if "server" in run:
        raise SkitError("the run was verified by a server, which is not known here: use skit bench --server again")
    config = {name: run["config"][name] for name in OPTIONS}
    config |= {name: run["config"][name] for name in NEWER_OPTIONS if name in run["config"]}
    if places.device:
        config["device"] = places.device
    given: dict[Role, str | None] = {"target": places.target, "draft": places.draft}
    models: dict[str, Any] = {role: _model(run, role, name) for role, name in given.items() if role in run["models"]}
    deployment = restore(run["deployment"]) if run.get("deployment") else None
    baseline = run["config"]["baseline"]
    return BenchSettings(
        (run["method"],), **models, **config, baseline=baseline, deployment=deployment, out=out, argv=argv
    )


def restore_dataset(run: Fields, data_dir: Path | None) -> LoadedDataset:
    """The same prompts; others under the same name are an error."""
    wanted, config = run["dataset"], run["config"]
    found = load(
        _prompts(run, data_dir), data_dir=data_dir, allow_sample=False, limit=config.get("limit"), seed=config["seed"]
    )
    found = leave_out(found, frozenset(wanted.get("left_out") or ()), config.get("limit"), config["seed"])
    if found.digest != wanted["digest"]:
        raise SkitError(
            f"the prompts of {wanted['name']} ({found.location}) are not those of the run (SHA-256 "
            f"{found.digest[:12]}, not {wanted['digest'][:12]}): name the folder that holds them with --data-dir"
        )
    return replace(found, name=wanted["name"], source=wanted["source"], location=wanted["location"])


def require_same_models(run: Fields, models: Fields) -> None:
    """Models are the run's by content, or by commit where they come from the hub."""
    for role in run["models"]:
        found, wanted = models[role]["hash"], run["models"][role]["hash"]
        if found != wanted:
            raise SkitError(
                f"the {role} {models[role]['name']} is not that of the run (hash {found[:12]}, not {wanted[:12]}): "
                f"name the right one with --{role}"
            )


def _model(run: Fields, role: Role, given: str | None) -> str:
    """The name to load a model by: what is given, the bundled one, a hub id, or a folder of the same content."""
    name = run["models"][role]["name"]
    if given is not None:
        return given
    if name == f"{BUNDLED}/{role}":
        return BUNDLED
    folders = [Path(place) for place in (*_given_as(run, f"--{role}"), name)]
    same = [folder for folder in folders if folder.is_dir() and _hash(folder) == run["models"][role]["hash"]]
    if same:
        return str(same[0])
    if "/" in name:
        return str(name)
    raise SkitError(f"the {role} '{name}' was in a folder that the run does not name: say where with --{role}")


def _hash(folder: Path) -> str | None:
    try:
        return provenance.hash_model(folder)
    except SkitError:
        return None


def _prompts(run: Fields, data_dir: Path | None) -> str:
    """What to load: the dataset's name, its bundled sample, or its file where one of that name is at hand."""
    dataset = run["dataset"]
    if dataset["source"] == "sample":
        return str(SAMPLES / f"{dataset['location']}.jsonl")
    if dataset["source"] != "file":
        return str(dataset["name"])
    places = [data_dir / dataset["location"]] if data_dir else []
    places += [Path(place) for place in _given_as(run, "--dataset")] + [Path(dataset["location"])]
    for file in places:
        if file.name == dataset["location"] and file.is_file():
            return str(file)
    raise SkitError(
        f"the prompts were in a file {dataset['location']} in a folder that the run does not name: name the folder "
        "with --data-dir"
    )


def _given_as(run: Fields, option: str) -> Sequence[str]:
    """The values that the command line had for an option."""
    argv = run.get("argv", [])
    apart = [value for name, value in pairwise(argv) if name == option]
    return [*apart, *(one.partition("=")[2] for one in argv if one.startswith(f"{option}="))]
