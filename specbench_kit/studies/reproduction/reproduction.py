"""An experiment run: published numbers beside ours, a verdict, and what each assumed input does to them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from math import exp, log
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import CountCallback, ProgressCallback
from specbench_kit.papers.beside import beside
from specbench_kit.papers.experiment import Experiment
from specbench_kit.reports.experiments.wording import verdict
from specbench_kit.studies.reproduction import decoding, grid, laws, profiling, serving, training
from specbench_kit.studies.reproduction.moving import moved

Fields = dict[str, Any]
COMMANDS: Mapping[str, Callable[..., list[Fields]]] = {
    "simulate": serving.simulate,
    "capacity": serving.capacity,
    "bench": decoding.bench,
    "train": training.train,
    "profile": profiling.profile,
    "law": laws.law,
}
OPTIONS = {
    "simulate": serving.OPTIONS,
    "capacity": serving.OPTIONS | serving.RULE,
    "bench": {one.name for one in fields(decoding.Decoded)},
    "train": {one.name for one in fields(training.Learned)},
    "profile": {"series", "seeds"},
    "law": {"series"},
}


def reproduce(experiment: Experiment, report: ProgressCallback, changes: Fields, *, sensitivity: bool) -> Fields:
    """Everything that a report shows; `changes` are options over those of the experiment."""
    options = _changed(experiment, experiment.options, changes)
    pairs = _run(experiment, options, lambda *done: report(experiment.name, *done))
    compared = [one["simulated_over_published"] for one in pairs if one["simulated_over_published"]]
    stated = [one["holds"] for one in pairs if one["holds"] is not None]
    found = {
        "name": experiment.name,
        "command": experiment.command,
        "summary": experiment.summary,
        "source": experiment.source,
        "reading": experiment.reading,
        "against": experiment.against,
        "goal": experiment.goal,
        "prevented": experiment.prevented,
        "options": options,
        "published": pairs,
        "assumed": [one._asdict() for one in experiment.assumed],
        "within": sum(abs(one - 1) <= experiment.goal for one in compared) + sum(stated),
        "compared": len(compared) + len(stated),
    }
    found["sensitivity"] = _sensitivity(experiment, changes, _ratios(pairs), report) if sensitivity else []
    return {**found, "verdict": verdict(found)}


def _changed(experiment: Experiment, options: Mapping[str, Any], changes: Fields) -> Fields:
    known = OPTIONS[experiment.command]
    for key, value in changes.items():
        if "." not in key and key not in known:
            raise SkitError(f"--set {key}: {experiment.name} knows {', '.join(sorted(known))}, and fields with a dot")
        options = moved(options, key, value)
    return dict(options)


def _run(experiment: Experiment, options: Fields, told: CountCallback) -> list[Fields]:
    return beside(experiment, grid.rows_of(COMMANDS[experiment.command], options, told))


def _sensitivity(
    experiment: Experiment, changes: Fields, reached: Mapping[str, float], report: ProgressCallback
) -> list[Fields]:
    """Of each assumed input with other values: ours over the published numbers, as `reached` and as it is moved.

    What a move changes is taken from two runs with the `sensitivity` options, which may be shorter than the other.
    """
    inputs = [(one, value) for one in experiment.assumed if one.key for value in one.values]
    if not inputs:
        return []
    options = _changed(experiment, {**experiment.options, **experiment.sensitivity}, changes)
    planned = len(inputs) + 1
    report(f"{experiment.name}, inputs", 0, planned)
    stands = _ratios(_run(experiment, options, _silent))
    found = []
    for done, (one, value) in enumerate(inputs, 1):
        report(f"{experiment.name}, inputs", done, planned)
        ratios = _ratios(_run(experiment, moved(options, one.key, value), _silent))
        both = {
            name: (reached[name], reached[name] * ratios[name] / before)
            for name, before in stands.items()
            if name in ratios and name in reached
        }
        effect = exp(sum(log(b / a) for a, b in both.values()) / len(both)) if both else None
        found.append({"name": one.name, "value": str(value), "ratios": both, "effect": effect})
    report(f"{experiment.name}, inputs", planned, planned)
    return found


def _ratios(pairs: Sequence[Fields]) -> dict[str, float]:
    """Ours over the published number, by whose it is and where."""
    named = {_named(one): one for one in pairs}
    return {name: one["simulated_over_published"] for name, one in named.items() if one["simulated_over_published"]}


def _named(one: Fields) -> str:
    return " ".join([one["series"], *map(str, one["where"].values()), one["metric"]])


def _silent(_done: int, _planned: int) -> None:
    return None
