"""`skit list`: what can be named on the command line."""

import json
from collections.abc import Callable
from typing import Annotated, Any

from specbench_kit.cli.listed import print_list
from specbench_kit.core.errors import SkitError, did_you_mean
from specbench_kit.core.option import Option
from specbench_kit.core.specs import init_fields

Entry = dict[str, Any]


def list_entries(
    kind: Annotated[
        str | None,
        Option(
            "methods, datasets, models, executors, predictors, profiles, deployments, software, systems, schedulers, "
            "presets, experiments, engines or formats; all that list fast if left out",
            argument=True,
        ),
    ] = None,
    as_json: Annotated[bool, Option("Print a JSON list of objects.", flag="json")] = False,
) -> None:
    """List methods, datasets, models, executors, predictors, profiles, deployments or formats."""
    if kind is not None and kind not in KINDS:
        hint = did_you_mean(kind, KINDS)
        raise SkitError(f"nothing to list under '{kind}'{hint}; known: {', '.join(KINDS)}")
    chosen = [kind] if kind else [name for name in KINDS if name not in SLOW]
    entries = {name: KINDS[name]() for name in chosen}
    if as_json:
        print(json.dumps(entries[kind] if kind else entries))
        return
    for name, rows in entries.items():
        print_list(name, rows)


def _methods() -> list[Entry]:
    from specbench_kit.methods.base import GROUPS, methods

    entries = [
        {**_with_options(name, method), "group": method.group, "needs": method.requirements()}
        for name, method in methods.all().items()
    ]
    return sorted(entries, key=lambda entry: GROUPS.index(entry["group"]))


def _datasets() -> list[Entry]:
    from specbench_kit.datasets.base import datasets

    return [
        {
            "name": name,
            "summary": entry.summary,
            "source": entry.paper,
            "local": entry.local,
            "hub": entry.hub and entry.hub.path,
        }
        for name, entry in datasets.all().items()
    ]


def _models() -> list[Entry]:
    from specbench_kit.models.catalogue import bundled_pairs

    return [
        {"name": pair.name, "summary": pair.summary, "target": str(pair.target), "draft": str(pair.draft)}
        for pair in bundled_pairs()
    ]


def _executors() -> list[Entry]:
    from specbench_kit.models.executors.base import executors

    return [
        {
            "name": name,
            "summary": (kind.__doc__ or "").split(".")[0],
            "bitwise": kind.bitwise,
            "missing": kind.missing(),
        }
        for name, kind in executors.all().items()
    ]


def _predictors() -> list[Entry]:
    from specbench_kit.predictors.library import entries

    return entries()


def _profiles() -> list[Entry]:
    from specbench_kit.reports.profile.listing import entries

    return entries()


def _deployments() -> list[Entry]:
    from specbench_kit.deployments.listing import entries

    return entries()


def _software() -> list[Entry]:
    from specbench_kit.profilers.software import bundled_software

    return [
        {"name": name, "summary": one.title, "source": one.source, "cards": list(one.cards)}
        for name, one in bundled_software().items()
    ]


def _formats() -> list[Entry]:
    from specbench_kit.studies.interchange.base import formats

    return [{"name": name, "summary": form.summary, "tool": form.tool} for name, form in formats.all().items()]


def _systems() -> list[Entry]:
    from specbench_kit.serving.systems.base import systems

    return [
        {
            "name": name,
            "summary": system.summary,
            "source": system.source,
            "defaults": {"method": system.method, "scheduler": system.scheduler},
        }
        for name, system in systems.all().items()
    ]


def _schedulers() -> list[Entry]:
    from specbench_kit.serving.schedulers.base import schedulers

    return [_with_options(name, scheduler) for name, scheduler in schedulers.all().items()]


def _presets() -> list[Entry]:
    from specbench_kit.studies.serving.presets.base import presets

    return [
        {"name": name, "summary": f"skit {preset.command}: {preset.summary}", "source": preset.source}
        for name, preset in presets.all().items()
    ]


def _experiments() -> list[Entry]:
    from specbench_kit.papers.experiment import experiments

    return [
        {"name": name, "summary": f"skit {one.command}: {one.summary}", "source": one.source}
        for name, one in experiments().items()
    ]


def _engines() -> list[Entry]:
    from specbench_kit.live.engines.base import engines

    return [
        {
            "name": f"{name}://HOST:PORT",
            "summary": (engine.__doc__ or "").strip().partition("\n")[0],
            "draws": engine.samples,
        }
        for name, engine in engines.all().items()
    ]


def _with_options(name: str, entry: Any) -> Entry:
    return {
        "name": name,
        "summary": (entry.__doc__ or "").strip().partition("\n")[0],
        "source": entry.source,
        "options": {field.name: field.default for field in init_fields(entry)},
    }


SLOW = ("executors", "engines")
"""Kinds that take seconds to list, since they load torch."""
KINDS: dict[str, Callable[[], list[Entry]]] = {
    "methods": _methods,
    "datasets": _datasets,
    "models": _models,
    "executors": _executors,
    "predictors": _predictors,
    "profiles": _profiles,
    "deployments": _deployments,
    "systems": _systems,
    "schedulers": _schedulers,
    "presets": _presets,
    "software": _software,
    "experiments": _experiments,
    "engines": _engines,
    "formats": _formats,
}
