"""`skit list`: the names that options take."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import import_module
from itertools import zip_longest
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import to_builtins

from specbench_kit.cli.common import print_json
from specbench_kit.core.errors import SkitError, did_you_mean
from specbench_kit.core.option import Option
from specbench_kit.core.plain_text import one_line, summary_of
from specbench_kit.core.registry import modules_in_folders
from specbench_kit.core.specs import init_fields
from specbench_kit.core.typed_json import JsonObject

if TYPE_CHECKING:
    from specbench_kit.profilers.architectures import Architecture
    from specbench_kit.serving.golden import GoldenCurve

ListEntry = JsonObject
"""A row of `skit list --json`: `name`, `summary` and what else the kind has."""


Entries = Callable[[], list[ListEntry]]
"""A function that returns the entries of a kind."""

_KINDS: dict[str, Entries] = {}
AS_VERIFIER = "for skit bench --server, which verifies drafts there, and for skit ab"
AS_STREAM = "for skit ab alone"
"""The commands that take a kind of inference server."""
SLOW = ("drafters", "executors", "engines")
"""Kinds that take seconds to list, because they import torch."""


def list_entries(
    kind: Annotated[
        str | None,
        Option(
            "methods, drafters, datasets, metrics, models, traces, golden, executors, predictors, profiles, "
            "deployments, devices, architectures, software, engine-costs, systems, schedulers, routers, presets, "
            "experiments, engines, formats or commands; by default the names of all except drafters, executors and "
            "engines, which take seconds to list.",
            argument=True,
        ),
    ] = None,
    name: Annotated[
        str | None,
        Option(
            "One entry of that kind; of a deployment, the fields that --set changes, with their values and units.",
            argument=True,
        ),
    ] = None,
    as_json: Annotated[bool, Option("Print a JSON list of objects.", flag="json")] = False,
) -> None:
    """Print the entries of one kind, one of them, or the names of all kinds that are quick to
    list.
    """
    known = kinds()
    if kind is not None and kind not in known:
        hint = did_you_mean(kind, known)
        raise SkitError(f"nothing to list under '{kind}'{hint}; known: {', '.join(known)}")
    if kind is not None and name is not None:
        _list_one(kind, name, as_json)
        return
    shown = [kind] if kind else [listed for listed in known if listed not in SLOW]
    entries = {listed: known[listed]() for listed in shown}
    if as_json:
        print_json(entries[kind] if kind else entries)
        return
    if kind:
        print_list(kind, entries[kind])
        return
    for listed, rows in entries.items():
        print_names(listed, rows)
    print(f"skit list KIND describes them. Not shown here: {', '.join(SLOW)}.")


def _list_one(kind: str, name: str, as_json: bool) -> None:
    """Print one entry of a kind, or the fields of a deployment."""
    if kind == "deployments":
        from specbench_kit.deployments.loading import settable_fields

        fields = settable_fields(name)
        if as_json:
            print_json([{**asdict(one), "option": one.option} for one in fields])
            return
        print(_of_deployment(name))
        print_list(
            f"{name}: fields and their values",
            [{"name": one.option, "summary": one.unit} for one in fields],
        )
        print(
            "Repeat --set beside --deployment for each field that changes, as in --set link.rtt_s=40ms."
        )
        return
    of_kind = kinds()[kind]()
    found = [entry for entry in of_kind if entry["name"] == name]
    if not found and kind == "architectures":
        found = _derived_architecture(name)
    if not found:
        hint = did_you_mean(name, [entry["name"] for entry in of_kind])
        raise SkitError(
            f"no '{name}' among the {kind}{hint}; skit list {kind} shows all {len(of_kind)}"
        )
    if as_json:
        print_json(found)
    else:
        print_list(kind, found)


def _of_deployment(name: str) -> str:
    """Return what a deployment is, and how long its devices draft and verify."""
    from specbench_kit.deployments.loading import find
    from specbench_kit.reports.sections.profiles import FIVE_TOKENS, STEP
    from specbench_kit.reports.writing.formatting import seconds

    deployment = find(name).build()
    draft_s = deployment.drafter.latency.seconds(STEP)
    verify_s = deployment.verifier.latency.seconds(FIVE_TOKENS)
    return (
        f"{name}: {deployment.description.rstrip('.')}. {seconds(draft_s)} per drafted token, {seconds(verify_s)} per "
        f"verification of {FIVE_TOKENS[0][0]} tokens (after {STEP[0][1]} tokens, alone)."
    )


def lists(kind: str) -> Callable[[Entries], Entries]:
    """Return a decorator that makes a function the list of a kind."""

    def add(entries: Entries) -> Entries:
        _KINDS[kind] = entries
        return entries

    return add


@cache
def kinds() -> Mapping[str, Entries]:
    """Return the lists of all kinds, in the order in which they are listed: those below, then those
    in the `listing.py` of studies' folders.
    """
    for module in modules_in_folders("specbench_kit.studies", "listing"):
        import_module(module)
    return _KINDS


@lists("methods")
def _list_methods() -> list[ListEntry]:
    from specbench_kit.methods.base import GROUPS, methods

    entries = [
        {**_with_options(name, method), "group": method.group, "needs": method.requirements()}
        for name, method in methods.all().items()
    ]
    return sorted(entries, key=lambda entry: GROUPS.index(entry["group"]))


@lists("drafters")
def _list_drafters() -> list[ListEntry]:
    from specbench_kit.decoding.drafting.base import drafters

    return [
        {
            "name": name,
            "summary": summary_of(drafter),
            "options": {field.name: field.default for field in init_fields(drafter)},
            "gives": drafter.capability.words,
        }
        for name, drafter in drafters.all().items()
    ]


@lists("datasets")
def _list_datasets() -> list[ListEntry]:
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


@lists("metrics")
def _list_metrics() -> list[ListEntry]:
    from specbench_kit.metrics.added import added_metrics
    from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, METRICS

    named = [(metric.name, metric.definition, metric.unit) for metric in METRICS]
    named += [(one.name, one.definition, "seconds") for one in DISTRIBUTIONS]
    named += [(name, kind.definition, kind.unit) for name, kind in added_metrics.all().items()]
    return [{"name": name, "summary": definition, "unit": unit} for name, definition, unit in named]


@lists("models")
def _list_models() -> list[ListEntry]:
    from specbench_kit.models.catalogue import bundled_pairs, entries

    bundled: list[ListEntry] = [
        {
            "name": pair.name,
            "summary": f"Toy pair for tests and first steps: {pair.summary}. Part of the kit.",
            "target": str(pair.target),
            "draft": str(pair.draft),
            "here": True,
        }
        for pair in bundled_pairs()
    ]
    return [*to_builtins(entries()), *bundled]


@lists("traces")
def _list_traces() -> list[ListEntry]:
    from specbench_kit.traces.library import bundled_traces

    return [asdict(trace) for trace in bundled_traces().values()]


@lists("golden")
def _list_golden() -> list[ListEntry]:
    from specbench_kit.serving.golden import golden_curves

    return [
        {
            "name": name,
            "summary": f"{curve.summary}: {_lengths(curve)}",
            "thinking_on": curve.thinking_on,
            "thinking_off": curve.thinking_off,
            "source": curve.source,
        }
        for name, curve in golden_curves().items()
    ]


def _lengths(curve: "GoldenCurve") -> str:
    """Return the acceptance lengths of a curve from the shortest draft to the longest, in both
    modes.
    """
    ranges = [
        f"{lengths[min(lengths)]:.2f} (k={min(lengths)}) to {lengths[max(lengths)]:.2f} (k={max(lengths)}) {mode}"
        for mode, lengths in (
            ("thinking", curve.thinking_on),
            ("without thinking", curve.thinking_off),
        )
        if lengths
    ]
    return "; ".join(ranges)


@lists("executors")
def _list_executors() -> list[ListEntry]:
    from specbench_kit.models.executors.base import executors

    return [
        {
            "name": name,
            "summary": summary_of(kind).partition(".")[0],
            "bitwise": kind.bitwise,
            "missing": kind.missing(),
        }
        for name, kind in executors.all().items()
    ]


@lists("predictors")
def _list_predictors() -> list[ListEntry]:
    from specbench_kit.predictors.library import entries

    return list(map(to_builtins, entries()))


@lists("profiles")
def _list_profiles() -> list[ListEntry]:
    from specbench_kit.reports.sections.profiles import entries

    return list(map(to_builtins, entries()))


@lists("deployments")
def _list_deployments() -> list[ListEntry]:
    from specbench_kit.deployments.loading import entries

    return list(entries())


@lists("systems")
def _list_systems() -> list[ListEntry]:
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


@lists("schedulers")
def _list_schedulers() -> list[ListEntry]:
    from specbench_kit.serving.schedulers.base import schedulers

    return [_with_options(name, scheduler) for name, scheduler in schedulers.all().items()]


@lists("routers")
def _list_routers() -> list[ListEntry]:
    from specbench_kit.serving.routers.base import routers

    return [_with_options(name, router) for name, router in routers.all().items()]


@lists("devices")
def _list_devices() -> list[ListEntry]:
    from specbench_kit.profilers.devices import bundled_devices

    return [
        {
            "name": card.name,
            "summary": f"{card.title}: {card.bandwidth_bytes_per_s / 1e9:,.0f} GB/s"
            + (f", {card.memory_bytes / 1e9:g} GB" if card.memory_bytes else ""),
            "memory_gb": card.memory_bytes / 1e9,
            "bandwidth_gb_per_s": card.bandwidth_bytes_per_s / 1e9,
            "peak_tflops": {dtype: peak / 1e12 for dtype, peak in card.peak_flops.items()},
            "note": card.note,
        }
        for card in bundled_devices().values()
    ]


@lists("engine-costs")
def _list_engine_costs() -> list[ListEntry]:
    from specbench_kit.profilers.engine_costs import bundled_engine_costs

    return [
        {
            "name": name,
            "summary": costs.title,
            "source": costs.source,
            "seconds": {key: list(of) for key, of in costs.ranges.items() if any(of)},
            **({"graphs": costs.graph_sizes} if costs.graphs else {}),
            "sources": costs.sources,
        }
        for name, costs in bundled_engine_costs().items()
    ]


@lists("architectures")
def _list_architectures() -> list[ListEntry]:
    from specbench_kit.profilers.architectures import bundled_architectures
    from specbench_kit.profilers.variants import VARIANTS

    cards = [_architecture(name, shapes) for name, shapes in bundled_architectures().items()]
    derived = [
        {
            "name": f"{prefix}:ARCHITECTURE",
            "summary": f"derived from any architecture: {variant.title}",
        }
        for prefix, variant in VARIANTS.items()
    ]
    return [*cards, *derived]


def _derived_architecture(name: str) -> list[ListEntry]:
    """Return the entry of an architecture that a prefix makes of one; none if there is no such."""
    from specbench_kit.profilers.variants import find_architecture

    shapes = find_architecture(name)
    return [] if shapes is None else [_architecture(name, shapes)]


def _architecture(name: str, shapes: "Architecture") -> ListEntry:
    from specbench_kit.profilers.variants import describe_architecture

    return {
        "name": name,
        "summary": describe_architecture(shapes),
        "parameters": shapes.parameters,
        "active_parameters": shapes.active_parameters,
        "tokens_per_forward": shapes.tokens_per_forward,
        "kv_numbers_per_token": shapes.kv_numbers + shapes.windowed_kv_numbers,
        "state_numbers": shapes.state_numbers,
        "card": shapes.describe(),
    }


@lists("software")
def _list_software() -> list[ListEntry]:
    from specbench_kit.profilers.software import bundled_software

    return [
        {
            "name": name,
            "summary": software.title,
            "source": software.source,
            "cards": list(software.cards),
        }
        for name, software in bundled_software().items()
    ]


@lists("engines")
def _list_engines() -> list[ListEntry]:
    from specbench_kit.live.engines.base import dialects, engines

    verifiers: list[ListEntry] = [
        {
            "name": f"{name}://HOST:PORT",
            "summary": summary_of(engine),
            "group": AS_VERIFIER,
            "draws": engine.supports_sampling,
            "run_with": engine.run_with,
        }
        for name, engine in engines.all().items()
    ]
    streams: list[ListEntry] = [
        {"name": f"{name}://HOST:PORT", "summary": summary_of(dialect), "group": AS_STREAM}
        for name, dialect in dialects.all().items()
        if name not in engines.all()
    ]
    return [*verifiers, *streams]


@lists("commands")
def _list_commands() -> list[ListEntry]:
    from specbench_kit.cli.commands import commands_by_group

    return [
        {"name": name, "summary": entry.summary, "group": title}
        for title, entries in commands_by_group().items()
        for name, entry in entries.items()
    ]


def _with_options(name: str, entry: Any) -> ListEntry:
    return {
        "name": name,
        "summary": summary_of(entry),
        "source": entry.source,
        "options": {field.name: field.default for field in init_fields(entry)},
    }


GAP = 2
LONGEST_NAME = 0.3
"""Share of the terminal's width; the text of a longer name starts on the next line."""
BOLD = "1"
ITALIC = "3"
"""ANSI codes of styles."""


def print_names(kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print how many names a kind has, and the names."""
    print(_styled(f"{kind} ({len(rows)})", BOLD))
    names = ", ".join(one_line(row["name"]) for row in rows) or "none"
    width = get_terminal_size().columns
    lines = wrap(names, width - GAP, break_on_hyphens=False, break_long_words=False)
    print(*(" " * GAP + line for line in lines), sep="\n")


def print_list(kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print names in a column and their descriptions in another."""
    print(_styled(kind, ITALIC))
    names = [one_line(row["name"]) for row in rows]
    columns = get_terminal_size().columns
    width = (
        max((len(name) for name in names if len(name) <= columns * LONGEST_NAME), default=0) + GAP
    )
    group = ""
    for name, row in zip(names, rows, strict=True):
        if row.get("group", group) != group:
            group = row["group"]
            print(_styled(f"[{group}]", BOLD))
        options = ", ".join(f"{key}={value}" for key, value in row.get("options", {}).items())
        needs = row.get("needs") and f"Needs {'; '.join(row['needs'])}."
        gives = row.get("gives") and f"Gives {row['gives']}."
        missing = row.get("missing") and f"NOT AVAILABLE: it {row['missing']}."
        summary = (
            f"{row['summary'].removesuffix('.')}." if needs or gives or missing else row["summary"]
        )
        text = " ".join(
            filter(None, (summary, options and f"({options})", needs, gives, missing, _tried(row)))
        )
        lines = wrap(one_line(text), max(columns - width, 1), break_on_hyphens=False)
        if len(name) + GAP > width:
            lines.insert(0, "")
        for label, line in zip_longest([name], lines, fillvalue=""):
            print(f"{label:{width}}{line}".rstrip())


def _tried(row: Mapping[str, Any]) -> str:
    """Return with which versions an adapter was run; empty for what is no adapter."""
    if "run_with" not in row:
        return ""
    return f"Run with {row['run_with']}." if row["run_with"] else "NEVER RUN against a real server."


def _styled(text: str, style: str) -> str:
    """Return the text with a style if stdout is a terminal; importing rich for it would double the
    time.
    """
    return (
        f"\x1b[{style}m{text}\x1b[0m"
        if sys.stdout.isatty() and "NO_COLOR" not in os.environ
        else text
    )
