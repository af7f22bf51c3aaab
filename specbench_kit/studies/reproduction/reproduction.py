"""Run an experiment: published numbers next to simulated ones, a verdict, and the effect of each assumed input."""

from collections.abc import Mapping, Sequence
from math import exp, log

from specbench_kit.core.errors import require
from specbench_kit.core.progress import CountCallback, ProgressCallback
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.papers.comparison import compare_published
from specbench_kit.papers.experiment import ROLES, Experiment
from specbench_kit.reports.experiments.wording import verdict
from specbench_kit.studies.reproduction import grid
from specbench_kit.studies.reproduction.commands import find_command, option_names
from specbench_kit.studies.reproduction.inputs import replace_input

SEED_BY_SEED = frozenset({"simulate", "bench", "train"})
"""Commands that run once per seed here; `capacity` and `profile` average over their seeds themselves."""
SEEDS = 5
"""Seeds of an experiment that states no number: the fewest that an interval is given for."""


def reproduce(
    experiment: Experiment, report: ProgressCallback, changes: JsonObject, *, sensitivity: bool
) -> dict[str, object]:
    """Return everything that a report shows; `changes` replace options of the experiment."""
    options = _changed(experiment, experiment.options, changes)
    pairs = _run(experiment, options, lambda done, planned: report(experiment.name, done, planned))
    outcome = {**outcome_of(experiment, pairs), "options": options}
    moves = _sensitivity(experiment, changes, _ratios_by_number(pairs), report) if sensitivity else []
    return {**outcome, "sensitivity": moves, "verdict": verdict(outcome)}


def outcome_of(experiment: Experiment, pairs: Sequence[JsonObject]) -> dict[str, object]:
    """Return what a report shows of published numbers next to ours; only predictions that could fail are counted."""
    counted = [pair for pair in pairs if pair["counted"]]
    return {
        "name": experiment.name,
        "command": experiment.command,
        "summary": experiment.summary,
        "source": experiment.source,
        "reading": experiment.reading,
        "against": experiment.against,
        "goal": experiment.goal,
        "prevented": experiment.prevented,
        "differs": dict(experiment.differs),
        "published": pairs,
        "assumed": [assumed._asdict() for assumed in experiment.assumed],
        "within": sum(pair["within"] for pair in counted),
        "compared": len(counted),
        "roles": {role: _role_counts(role, pairs) for role in ROLES},
    }


def _role_counts(role: str, pairs: Sequence[JsonObject]) -> dict[str, int]:
    """Return how many numbers of a role were compared, met, and would be met by no effect at all."""
    compared = [pair for pair in pairs if pair["role"] == role and pair["within"] is not None]
    return {
        "compared": len(compared),
        "within": sum(pair["within"] for pair in compared),
        "passed_by_no_effect": sum(pair["passed_by_no_effect"] for pair in compared),
    }


def _changed(experiment: Experiment, options: JsonObject, changes: JsonObject) -> JsonObject:
    valid_names = option_names(experiment.command) if changes else frozenset()
    for key, value in changes.items():
        require(
            "." in key or key in valid_names,
            f"--set {key}: {experiment.name} knows {', '.join(sorted(valid_names))}, and fields with a dot",
        )
        options = replace_input(options, key, value)
    return options


def _run(experiment: Experiment, options: JsonObject, report: CountCallback) -> Sequence[JsonObject]:
    command = find_command(experiment.command)
    if experiment.command not in SEED_BY_SEED:
        return compare_published(experiment, grid.rows_of(command, options, report))
    of_one_seed = {name: value for name, value in options.items() if name != "seeds"}
    if experiment.command == "simulate":
        of_one_seed["seeds"] = 1
    seeds: int = options.get("seeds", SEEDS)
    return compare_published(experiment, grid.estimated_rows_of(command, of_one_seed, report, seeds))


def _sensitivity(
    experiment: Experiment, changes: JsonObject, ratios: Mapping[str, float], report: ProgressCallback
) -> list[JsonObject]:
    """Return the effect of every further value of every assumed input on `ratios`, simulated over published.

    The effect of a value is measured between two runs with the `sensitivity` options, since these may be shorter than
    the run that gave `ratios`; each ratio is then multiplied by it. One seed is enough for both, whose workloads are
    the same.
    """
    inputs = [(assumed, value) for assumed in experiment.assumed if assumed.key for value in assumed.values]
    if not inputs:
        return []

    def run_silently(run_options: JsonObject) -> dict[str, float]:
        return _ratios_by_number(_run(experiment, run_options, lambda _done, _planned: None))

    one_seed = {"seeds": 1} if experiment.command in SEED_BY_SEED else {}
    options = _changed(experiment, {**experiment.options, **one_seed, **experiment.sensitivity}, changes)
    step, planned = f"{experiment.name}, inputs", len(inputs) + 1
    report(step, 0, planned)
    before = run_silently(options)
    moves: list[JsonObject] = []
    for done, (assumed, value) in enumerate(inputs, 1):
        report(step, done, planned)
        after = run_silently(replace_input(options, assumed.key, value))
        moved_ratios = {
            name: (ratios[name], ratios[name] * after[name] / ratio)
            for name, ratio in before.items()
            if name in after and name in ratios
        }
        logs = [log(moved / ratio) for ratio, moved in moved_ratios.values()]
        effect = exp(sum(logs) / len(logs)) if logs else None
        moves.append({"name": assumed.name, "value": str(value), "ratios": moved_ratios, "effect": effect})
    report(step, planned, planned)
    return moves


def _ratios_by_number(pairs: Sequence[JsonObject]) -> dict[str, float]:
    """Return the simulated over the published numbers by series, point of the grid and metric."""
    return {
        " ".join([pair["series"], *map(str, pair["where"].values()), pair["metric"]]): pair["simulated_over_published"]
        for pair in pairs
        if pair["simulated_over_published"]
    }
