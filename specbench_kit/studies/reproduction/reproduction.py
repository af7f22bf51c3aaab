"""One call of `skit reproduce`: published numbers next to simulated ones, a verdict, and the effect
of each input.

The command of an experiment is loaded when an experiment needs it: arithmetic need not wait for a
decoder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, structs

from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import OptionValues
from specbench_kit.core.progress import CountCallback, ProgressCallback
from specbench_kit.core.typed_json import decode
from specbench_kit.papers.comparison import (
    ComparedNumber,
    compare_published,
    compare_simulated,
    predictions,
    printed_numbers,
)
from specbench_kit.papers.experiment import (
    NOT_THE_PAPERS,
    ROLES,
    Experiment,
    Published,
    SeedOptions,
    experiments,
    find_experiments,
)
from specbench_kit.predictors.latency import stopwatch
from specbench_kit.reports.study import VERSION
from specbench_kit.runs import provenance
from specbench_kit.runs.folder import require_writable, to_json, unused_folder, write_text
from specbench_kit.serving.figures import Interval
from specbench_kit.studies.reproduction import grid
from specbench_kit.studies.reproduction.grid import (
    Changes,
    ExperimentCommand,
    parse_changes,
    replace_input,
)
from specbench_kit.studies.reproduction.inputs import (
    SEEDS,
    changed_options,
    changes_meaning,
    describe_change,
    replaced_series,
    value_of_change,
)
from specbench_kit.studies.reproduction.report import write
from specbench_kit.studies.reproduction.wording import (
    MovedInput,
    ReproducedExperiment,
    RoleCounts,
    verdict,
)

SEED_BY_SEED = frozenset({"simulate", "bench", "train"})
"""Commands that run once per seed here; `capacity` and `profile` average over their seeds
themselves.
"""


def reproduce(
    experiment: Experiment, report: ProgressCallback, changes: Changes, *, sensitivity: bool
) -> ReproducedExperiment:
    """Return everything that a report shows; `changes` replace options of the experiment."""
    options = changed_options(experiment, experiment.options, changes)
    described = {key: describe_change(experiment, key, value) for key, value in changes.items()}
    pairs = _run(experiment, options, lambda done, planned: report(experiment.name, done, planned))
    ratios = _ratios_by_number(pairs)
    experiment_run = experiment
    replaced: dict[str, str] = {}
    if changes_meaning(changes):
        seeds = {key: value for key, value in changes.items() if key == "seeds"}
        before = _run(
            experiment,
            changed_options(experiment, experiment.options, seeds),
            lambda done, planned: report(f"{experiment.name}, unchanged", done, planned),
        )
        replaced = replaced_series(experiment, changes)
        experiment_run = _renamed(experiment, replaced)
        pairs = _with_unchanged(
            _compared_again(experiment_run, [pair.simulated for pair in pairs]),
            [pair.simulated for pair in before],
        )
    outcome = outcome_of(experiment_run, pairs, described, replaced)
    outcome.options = options
    if sensitivity:
        outcome.sensitivity = _sensitivity(experiment, changes, ratios, report)
    return outcome


def _renamed(experiment: Experiment, names: Mapping[str, str]) -> Experiment:
    """Return the experiment with other names of series that are not the paper's any more.

    The paper prints no number of these, so that they are shown and not judged.
    """
    published = tuple(
        structs.replace(
            number, series=names[number.series], value=None, bound="", role=NOT_THE_PAPERS
        )
        if number.series in names
        else number
        for number in experiment.published
    )
    return replace(
        experiment,
        published=published,
        against=names.get(experiment.against, experiment.against),
        variants=tuple(
            row for row in experiment.variants if not any(name in names for name in row)
        ),
    )


def _compared_again(
    experiment: Experiment, simulated: Sequence[Interval | None]
) -> list[ComparedNumber]:
    """Return the numbers of an experiment next to those that were simulated, in their order."""
    numbers = list(zip(experiment.published, simulated, strict=True))
    return compare_simulated(numbers, experiment.goal, experiment.against, experiment.variants)


def _with_unchanged(
    pairs: Sequence[ComparedNumber], unchanged: Sequence[Interval | None]
) -> list[ComparedNumber]:
    return [
        structs.replace(pair, unchanged=before)
        for pair, before in zip(pairs, unchanged, strict=True)
    ]


def outcome_of(
    experiment: Experiment,
    pairs: Sequence[ComparedNumber],
    changes: Mapping[str, str] | None = None,
    replaced: Mapping[str, str] | None = None,
) -> ReproducedExperiment:
    """Return published numbers next to ours with the verdict; only predictions that could fail are
    counted.
    """
    counted = predictions(pairs, experiment.variants)
    outcome = ReproducedExperiment(
        name=experiment.name,
        command=experiment.command,
        summary=experiment.summary,
        source=experiment.source,
        reading=experiment.reading,
        against=experiment.against,
        goal=experiment.goal,
        prevented=experiment.prevented,
        differs=dict(experiment.differs),
        published=list(pairs),
        assumed=list(experiment.assumed),
        within=sum(number.is_met for number in counted),
        compared=len(counted),
        roles={role: _role_counts(role, pairs, experiment.variants) for role in ROLES},
        options={},
        sensitivity=[],
        verdict="",
        variants=experiment.variants,
        changes=dict(changes or {}),
        replaced=dict(replaced or {}),
    )
    outcome.verdict = verdict(outcome)
    return outcome


def _role_counts(
    role: str, pairs: Sequence[ComparedNumber], variants: Sequence[Sequence[str]]
) -> RoleCounts:
    """Return how many printed numbers of a role were compared, met, and would be met by no effect
    at all.
    """
    of_role = [pair for pair in pairs if pair.role == role and pair.within is not None]
    compared = printed_numbers(of_role, variants)
    idle = printed_numbers([pair for pair in of_role if pair.passed_by_no_effect], variants)
    return RoleCounts(
        compared=len(compared),
        within=sum(number.is_met for number in compared),
        passed_by_no_effect=len(idle),
        idle_missed=sum(not number.is_met for number in idle),
    )


def _run(
    experiment: Experiment, options: OptionValues, report: CountCallback
) -> Sequence[ComparedNumber]:
    command = find_command(experiment.command)
    if experiment.command not in SEED_BY_SEED:
        return compare_published(experiment, grid.rows_of(command, options, report))
    of_one_seed = {name: value for name, value in options.items() if name != "seeds"}
    if experiment.command == "simulate":
        of_one_seed["seeds"] = 1
    seeds = SeedOptions.of(options).seeds or SEEDS
    return compare_published(
        experiment, grid.estimated_rows_of(command, of_one_seed, report, seeds)
    )


def _sensitivity(
    experiment: Experiment,
    changes: Changes,
    ratios: Mapping[str, float],
    report: ProgressCallback,
) -> list[MovedInput]:
    """Return the effect of every further value of every assumed input on `ratios`, simulated over
    published.

    The effect of a value is measured between two runs with the `sensitivity` options, since these
    may be shorter than the run that gave `ratios`; each ratio is then multiplied by it. One seed is
    enough for both, whose workloads are the same.
    """
    inputs = [
        (assumed, value)
        for assumed in experiment.assumed
        if assumed.key
        for value in assumed.values
    ]
    if not inputs:
        return []

    def run_silently(run_options: OptionValues) -> dict[str, float]:
        return _ratios_by_number(_run(experiment, run_options, lambda _done, _planned: None))

    one_seed = {"seeds": 1} if experiment.command in SEED_BY_SEED else {}
    options = changed_options(
        experiment, {**experiment.options, **one_seed, **experiment.sensitivity}, changes
    )
    step = f"{experiment.name}, inputs"
    planned = len(inputs) + 1
    report(step, 0, planned)
    before = run_silently(options)
    moves: list[MovedInput] = []
    for done, (assumed, value) in enumerate(inputs, 1):
        report(step, done, planned)
        after = run_silently(replace_input(options, assumed.key, value))
        moved_ratios = {
            name: (ratios[name], ratios[name] * after[name] / ratio)
            for name, ratio in before.items()
            if name in after and name in ratios
        }
        # A gain that turns into a loss has no ratio of both.
        logs = [log(moved / ratio) for ratio, moved in moved_ratios.values() if moved / ratio > 0]
        effect = exp(sum(logs) / len(logs)) if logs else None
        moves.append(MovedInput(assumed.name, str(value), moved_ratios, effect))
    report(step, planned, planned)
    return moves


def _ratios_by_number(pairs: Sequence[ComparedNumber]) -> dict[str, float]:
    """Return the simulated over the published numbers by series, point of the grid and metric."""
    return {
        " ".join(
            [pair.series, *map(str, pair.where.values()), pair.metric]
        ): pair.simulated_over_published
        for pair in pairs
        if pair.simulated_over_published
    }


SUMMARY = "summary.json"


class ReproductionSummary(Struct):
    """The content of a reproduction's `summary.json`."""

    experiments: Annotated[
        dict[str, ReproducedExperiment], Meta(description="the experiments by name")
    ]


@dataclass(frozen=True)
class ReproductionOutcome:
    """The folder of a reproduction and the experiments that were asked for."""

    folder: Path
    experiments: Sequence[ReproducedExperiment]


def run(
    names: Sequence[str],
    changes: Changes,
    sensitivity: bool,
    out: Path,
    to: Path | None,
    report: ProgressCallback,
    argv: Sequence[str],
) -> ReproductionOutcome:
    """Reproduce every named experiment and write its pages and run.json.

    They go into a new folder of `out`, or into the folder `to`, where the results of other
    experiments stay as they are. Numbers are written after each experiment.
    """
    chosen = list(
        dict.fromkeys(experiment.name for name in names for experiment in find_experiments(name))
    )
    folder = to or unused_folder(
        out, "reproduce", "-".join(names), {"names": chosen, "changes": dict(changes)}
    )
    for name in chosen:
        changed_options(experiments()[name], experiments()[name].options, changes)
    require_writable(folder)
    results = _earlier_results(folder)
    _require_same_inputs(folder, results, changes)
    for name in chosen:
        elapsed_s = stopwatch()
        result = reproduce(experiments()[name], report, changes, sensitivity=sensitivity)
        result.wall_s = elapsed_s()
        results[name] = result
        # After an interruption, the user can name the experiments that are missing and keep these
        # results.
        write_text(folder / SUMMARY, to_json(ReproductionSummary(dict(sorted(results.items())))))
    write(folder, [results[name] for name in sorted(results)])
    arithmetic = all(experiments()[name].command == "law" for name in chosen)
    origin = provenance.collect(tuple(argv), arithmetic=arithmetic)
    described = {"schema_version": VERSION, "command": "reproduce", **origin}
    write_text(folder / "run.json", to_json(described))
    return ReproductionOutcome(folder, [results[name] for name in chosen])


def _require_same_inputs(
    folder: Path, results: Mapping[str, ReproducedExperiment], changes: Changes
) -> None:
    """Raise SkitError for a folder of results with other inputs: a page would show both as the
    paper's.

    The number of seeds is no such input: it makes a result more or less precise.
    """
    for name, result in results.items():
        asked = {
            key: describe_change(experiments()[name], key, value)
            for key, value in changes.items()
            if key != "seeds"
        }
        has = {key: value for key, value in result.changes.items() if key != "seeds"}
        if has != asked:
            words = (
                ", ".join(f"{key}: {value}" for key, value in has.items())
                or "the inputs of the experiment"
            )
            raise SkitError(
                f"{folder} holds {name} with {words}: choose another folder with --to for other inputs"
            )


def _earlier_results(folder: Path) -> dict[str, ReproducedExperiment]:
    """Return the results that an earlier call left in a folder, by experiment."""
    file = folder / SUMMARY
    if not file.exists():
        return {}
    try:
        content = decode(ReproductionSummary, file.read_bytes())
    except ValueError as error:
        raise SkitError(
            f"{file} was not written by skit reproduce ({error}): choose another --to"
        ) from error
    return judged_again(content).experiments


def judged_again(earlier: ReproductionSummary) -> ReproductionSummary:
    """Return earlier results of experiments that are still known, judged by the rules of today."""
    library = experiments()
    known = {name: result for name, result in earlier.experiments.items() if name in library}
    return ReproductionSummary(
        {name: judge_again(library[name], result) for name, result in known.items()}
    )


def judge_again(experiment: Experiment, earlier: ReproducedExperiment) -> ReproducedExperiment:
    """Return an earlier result with its simulated numbers as they were, judged by the rules and
    words of today.

    A page would otherwise count the experiments of this call by one rule and those of earlier calls
    by another.
    """
    texts = [f"{key}={value_of_change(value)}" for key, value in earlier.changes.items()]
    replaced = _names_of(experiment, texts)
    experiment = _renamed(experiment, replaced)
    found = {_key(pair): (pair.simulated, pair.unchanged) for pair in earlier.published}
    numbers = [number for number in experiment.published if _key(number) in found]
    pairs = compare_simulated(
        [(number, found[_key(number)][0]) for number in numbers],
        experiment.goal,
        experiment.against,
        experiment.variants,
    )
    pairs = _with_unchanged(pairs, [found[_key(number)][1] for number in numbers])
    result = outcome_of(experiment, pairs, earlier.changes, replaced)
    result.options, result.sensitivity, result.wall_s = (
        earlier.options,
        earlier.sensitivity,
        earlier.wall_s,
    )
    return result


def _names_of(experiment: Experiment, changes: Sequence[str]) -> dict[str, str]:
    """Return the new names of series; none where the library has other inputs than it had."""
    try:
        return replaced_series(experiment, parse_changes(changes)) if changes else {}
    except SkitError:
        return {}


def _key(number: Published) -> tuple[str, str, frozenset[tuple[str, object]], str, float | None]:
    """Return what tells a published number from the others of its experiment."""
    return number.series, number.metric, frozenset(number.where.items()), number.bound, number.value


COMMANDS = ("simulate", "capacity", "bench", "train", "profile", "law")


def find_command(name: str) -> ExperimentCommand:
    """Return the function that runs experiments of a command."""
    if name in ("law", "profile"):
        from specbench_kit.studies.reproduction import laws

        return laws.law if name == "law" else laws.profile
    if name == "train":
        from specbench_kit.studies.reproduction.training import train

        return train
    from specbench_kit.studies.reproduction import decoding

    return {"bench": decoding.bench, "simulate": decoding.simulate, "capacity": decoding.capacity}[
        name
    ]
