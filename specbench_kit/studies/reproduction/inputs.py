"""The inputs of an experiment that `--set` may change, and why a change is refused.

Nothing here loads a decoder or a simulator, so that a wrong name or value is refused at once.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from shlex import quote

from specbench_kit.core.errors import SkitError, did_you_mean, require
from specbench_kit.core.option import OptionValues, from_keywords, select_fields
from specbench_kit.core.typed_json import convert
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.fields import parse_field
from specbench_kit.deployments.loading import find, load
from specbench_kit.deployments.prompt_options import PromptOptions
from specbench_kit.methods.spec import parse_method
from specbench_kit.papers.derived import derived_of
from specbench_kit.papers.experiment import GRID, Assumed, Experiment, series_of
from specbench_kit.serving.options import OWN, CapacityRule, ServingOptions, SimulationOptions
from specbench_kit.serving.systems.base import systems
from specbench_kit.studies.reproduction.grid import (
    Changes,
    parse_changes,
    points_of,
    replace_input,
    series_name,
)

SEEDS = 5
"""Seeds of an experiment that states no number: the fewest that an interval is given for."""
RULE = frozenset(field.name for field in fields(CapacityRule))
SERVED = ("simulate", "capacity")
FORMULAS = {"law": "a closed form", "profile": "a fit to a profile"}
"""Commands without a deployment, whose inputs are those of their series."""
SECTIONS = ("drafter", "verifier", "link", "colocated")
"""The parts of a deployment that have fields."""
FIELDS = ("link.rtt_s", "link.jitter_s", "verifier.coefficients.c_s", "drafter.coefficients.c_s")
"""Fields that an error line suggests where a name is near one of them."""
NOT_CHANGED = frozenset({"series", "label", "out", "replaced"})
"""Options that are no inputs: names of series and files, and fields that are given by themselves."""


@dataclass(frozen=True)
class DecodedSeries:
    """One method on one deployment with one pair; `draft` is the part of the pair's spec after
    `synthetic:`.
    """

    method: str
    deployment: str
    draft: str = ""
    replaced: tuple[str, ...] = ()

    def load_deployment(self) -> Deployment:
        """Return the deployment with its replaced fields; raise SkitError if it has no latency
        models.
        """
        deployment = load(self.deployment, self.replaced)
        if deployment is None:
            raise SkitError(
                "an experiment needs latency models: choose a deployment other than local"
            )
        return deployment


@dataclass(frozen=True, kw_only=True)
class PredictorOptions:
    """The recorded drafts that predictors learn from, and the extent of their training."""

    target: str
    draft: str
    dataset: str = "gsm8k"
    limit: int = 40
    output_tokens: int = 64
    max_draft: int = 8
    trials: int = 1
    seed: int = 0
    timed_scores: int = 1000


OPTIONS_OF: Mapping[str, tuple[type, ...]] = {
    "bench": (PromptOptions,),
    "train": (PredictorOptions,),
    "simulate": (SimulationOptions,),
    "capacity": (ServingOptions, CapacityRule),
}
OF_SERIES = {
    "bench": ("method", "deployment", "draft"),
    "train": ("family", "threshold", "library"),
}
"""The inputs of every series, of commands whose series have the same ones."""


def option_names(command: str) -> frozenset[str]:
    """Return the names of the options of a command's experiments."""
    own = {field.name for kind in OPTIONS_OF.get(command, ()) for field in fields(kind)}
    own -= {"backend", "resume"}
    if command in SERVED:
        return frozenset(own | ({"slo_of"} if command == "simulate" else set()))
    return frozenset(own | {"series"} | (set() if command == "law" else {"seeds"}))


def inputs_of(experiment: Experiment) -> list[str]:
    """Return the names of the inputs that can be changed, but those of series and deployments.

    An axis of the grid is no input, since each of its points sets it.
    """
    return sorted(option_names(experiment.command) - NOT_CHANGED - {"slo_of"} - _axes(experiment))


def inputs_of_series(experiment: Experiment, name: str) -> list[str]:
    """Return the inputs of a series of that name, or of any series where it is `*`."""
    series = series_of(experiment.options)
    entries = list(series.values()) if name == "*" else [series[name]]
    own = OF_SERIES.get(experiment.command) if entries else ()
    if own is None:
        known = {key for entry in entries for key in entry} - {"law"}
    else:
        specs = {
            f"{key}.{option}"
            for entry in entries
            for key in own
            for option in _options_of_specs(entry.get(key))
        }
        known = {*own, *specs}
    axes = _axes(experiment)
    return sorted(key for key in known if not {f"series.*.{key}", f"series.{name}.{key}"} & axes)


def _axes(experiment: Experiment) -> set[str]:
    """Return the inputs that the points of the grid set."""
    return {key for axis in derived_of(experiment.options).over.values() for key in axis.keys}


def changed_options(
    experiment: Experiment, options: OptionValues, changes: Changes
) -> OptionValues:
    """Return the options with changed inputs; raise SkitError, with what is known, for an input
    that the experiment does not have, that changes nothing, or of a wrong kind.
    """
    for key, value in changes.items():
        _require_known(experiment, options, key)
        _require_kind(experiment, options, key, value)
        place = _place(experiment, key)
        _require_effect(experiment, options, key, place)
        options = replace_input(options, place, value)
    if changes:
        _require_accepted(experiment, options)
    return options


def example_change(experiment: Experiment, assumed: Assumed) -> str:
    """Return what `--set` takes to change an assumed input of this experiment, or nothing.

    A paper's world shares its inputs, some of which an experiment has not or sets by itself.
    """
    if not assumed.example:
        return ""
    try:
        changed = changed_options(experiment, experiment.options, parse_changes([assumed.example]))
    except SkitError:
        return ""
    return assumed.example if changed != experiment.options else ""


IN_PLACE = " in place of "
"""Stands between the new and the previous value of an input, in a description of a change."""
MOST_VALUES = 4
"""Different previous values of an input that are named."""
MEANINGS = ("system", "scheduler", "method")
"""Options that make a series what its name says."""


def describe_change(experiment: Experiment, key: str, value: object) -> str:
    """Return the value of a changed input as `--set` takes it, and the previous one if it is
    known.
    """
    before = list(dict.fromkeys(map(shown_value, _previous_values(experiment, key))))
    if not before or len(before) > MOST_VALUES:
        return shown_value(value)
    return f"{shown_value(value)}{IN_PLACE}{', '.join(before)}"


def _previous_values(experiment: Experiment, key: str) -> list[object]:
    """Return the values of an input in the unchanged experiment, of every series that has it."""
    options = experiment.options
    head, _, tail = key.partition(".")
    if not tail:
        present = options.get(key, _default(experiment.command, key))
        return [] if present is None or isinstance(present, Mapping) else [present]
    if head == "series":
        series = series_of(options)
        name = series_name(series, tail)
        own = tail.removeprefix(f"{name}.")
        chosen = series.values() if name == "*" else [series[name]]
        return [value for entry in chosen for value in _values_in(entry, own)]
    of_series = experiment.command == "bench"
    entries: Iterable[OptionValues] = series_of(options).values() if of_series else [options]
    return [value for entry in entries for value in _values_in(entry, key)]


def _values_in(entry: OptionValues, key: str) -> list[object]:
    """Return the values of an input in one series, or in all series of a served experiment."""
    head, _, tail = key.partition(".")
    if key in entry:
        return [entry[key]]
    if head not in SECTIONS:
        return [
            item.partition("=")[2]
            for spec in _texts(entry.get(head))
            for item in spec.partition(":")[2].split(",")
            if item.partition("=")[0] == tail
        ]
    replaced = dict(map(parse_field, _texts(entry.get("replaced"))))
    values: list[object] = []
    for name in _texts(entry.get("deployment")):
        content: object = find(name).replace(replaced).content
        for part in key.split("."):
            content = content.get(part) if isinstance(content, Mapping) else None
        values += [] if content is None else [content]
    return values


def _texts(value: object) -> list[str]:
    """Return the texts of an input that is one or several; none of one that is not stated."""
    if value is None:
        return []
    return list(map(str, value)) if isinstance(value, list | tuple) else [str(value)]


def value_of_change(description: str) -> str:
    """Return the value in a described change."""
    return description.partition(IN_PLACE)[0]


def shown_value(value: object) -> str:
    """Return a value as `--set` takes it: an entry alone without the brackets of its list."""
    if isinstance(value, list | tuple):
        return shown_value(value[0]) if len(value) == 1 else json.dumps(list(value))
    return json.dumps(value) if isinstance(value, bool) else str(value)


def changes_meaning(changes: Changes) -> bool:
    """Return whether anything but the number of seeds was changed."""
    return any(key != "seeds" for key in changes)


def replaced_series(experiment: Experiment, changes: Changes) -> dict[str, str]:
    """Return the new names of series that changes made something else, such as another scheduler,
    and of the figures that are derived from these.
    """
    before = experiment.options
    after = changed_options(experiment, before, changes)
    names: dict[str, str] = {}
    for option in MEANINGS:
        if option in changes and "label" in before:
            labels = _texts(before["label"])
            old, new = (_of_labels(options, option) for options in (before, after))
            for label, was, now in zip(labels, old, new, strict=True):
                if was != now:
                    names[label] = f"{names.get(label, label)} ({option} {now})"
    series_after = series_of(after)
    for label, entry in series_of(before).items():
        if any(key.endswith(".method") for key in changes):
            method = series_after[label].get("method")
            if method != entry.get("method"):
                names[label] = f"{label} (method {method})"
    of_label: dict[str, set[str]] = {}
    for side in derived_of(before).sides:
        of_side = {figure.rpartition("/")[0] for figure in side.figures}
        of_label[side.label] = of_label.get(side.label, set()) | of_side
    for label, of in of_label.items():
        if changed := [names[name] for name in names if name in of]:
            names[label] = f"{label} ({', '.join(changed)})"
    return names


def _of_labels(options: OptionValues, option: str) -> list[str]:
    """Return the option of every label; a system's own scheduler or method by its name."""
    count = len(_texts(options["label"]))
    given = (_texts(options.get(name, [OWN])) for name in (option, "system"))
    values, names = (texts * count if len(texts) == 1 else texts for texts in given)
    return [
        getattr(systems.get(name), option) if value == OWN and option != "system" else value
        for value, name in zip(values, names, strict=True)
    ]


def _default(command: str, key: str) -> object:
    """Return the default of an option that an experiment does not state; None if it has none."""
    if key == "seeds":
        return SEEDS
    for kind in OPTIONS_OF.get(command, ()):
        for field in fields(kind):
            if field.name == key and field.default is not MISSING:
                return field.default or None
    return None


def _place(experiment: Experiment, key: str) -> str:
    """Return where an input stands: a deployment's field is that of every series, if these have the
    deployments.
    """
    of_series = experiment.command == "bench" and key.partition(".")[0] in SECTIONS
    return f"series.*.{key}" if of_series else key


def _require_known(experiment: Experiment, options: OptionValues, key: str) -> None:
    head, _, tail = key.partition(".")
    if head == "series" and tail and "series" in options:
        name = series_name(series_of(options), tail)
        own = tail.removeprefix(f"{name}.")
        known = inputs_of_series(experiment, name)
        is_field = experiment.command == "bench" and _is_field(own)
        if own in known or is_field:
            return
        hint = did_you_mean(own, [*known, *(FIELDS if experiment.command == "bench" else ())])
    else:
        known = inputs_of(experiment)
        has_fields = experiment.command in (*SERVED, "bench")
        if (
            key in known
            or (has_fields and _is_field(key))
            or tail in _options_of_specs(options.get(head))
        ):
            return
        hint = did_you_mean(key, known)
    raise SkitError(f"--set {key}: {_what_is_known(experiment, key, hint)}")


def _is_field(key: str) -> bool:
    """Return whether a key may name a field of a deployment, which the deployment itself checks."""
    head, _, tail = key.partition(".")
    return head in SECTIONS and bool(tail)


def _what_is_known(experiment: Experiment, key: str, hint: str) -> str:
    """Return the end of an error line on an input that an experiment does not have."""
    known = inputs_of(experiment)
    series = series_of(experiment.options)
    if key in _axes(experiment):
        return f"{experiment.name} varies it, so that it cannot be set; it knows {', '.join(known)}"
    first = ", ".join(f"'{name}'" for name in list(series)[:3])
    more = f" and {len(series) - 3} more" if len(series) > 3 else ""
    names = f"NAME is * for all series or one of {first}{more}"
    if kind := FORMULAS.get(experiment.command):
        own = "".join(f"{name} and " for name in known)
        of_series = ", ".join(inputs_of_series(experiment, "*"))
        return (
            f"{experiment.name} is {kind}{hint}; its inputs are {own}series.NAME.INPUT, where "
            f"INPUT is one of {of_series} and {names}"
        )
    told = f"{experiment.name} has no such input{hint}; it knows {', '.join(known)}"
    if not series:
        return f"{told}, and fields of the deployments, such as link.rtt_s"
    of_series = ", ".join(inputs_of_series(experiment, "*"))
    fields_too = ""
    if experiment.command == "bench":
        told += ", fields of all deployments, such as link.rtt_s,"
        fields_too = " or such a field"
    return (
        f"{told} and series.NAME.INPUT, where INPUT is one of {of_series}{fields_too} and {names}"
    )


def _options_of_specs(specs: object) -> set[str]:
    """Return the names of the options that are written in one spec or several."""
    if isinstance(specs, list | tuple):
        return {name for spec in specs for name in _options_of_specs(spec)}
    if not isinstance(specs, str):
        return set()
    return {item.partition("=")[0] for item in specs.partition(":")[2].split(",") if "=" in item}


def _require_kind(experiment: Experiment, options: OptionValues, key: str, value: object) -> None:
    """Raise SkitError for a value of another kind than the present one, or below zero."""
    default = _defaults(experiment.command).get(key)
    previous = _present(options, key, default)
    if not isinstance(previous, int | float) or isinstance(previous, bool):
        return
    example = f"as in --set {quote(f'{key}={previous}')}"
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise SkitError(f"--set {key}={value}: {key} is a number, {example}")
    require(
        not (previous >= 0 > value), f"--set {key}={value}: {key} must not be negative, {example}"
    )
    is_count = isinstance(default, int) and default >= 1
    require(
        not is_count or (isinstance(value, int) and value >= 1),
        f"--set {key}={value}: {key} is a whole number from 1 on, {example}",
    )


def _defaults(command: str) -> OptionValues:
    """Return the defaults of numbers that the command itself does not check, and of the seeds."""
    kinds = () if command in SERVED else OPTIONS_OF.get(command, ())
    own = {field.name: field.default for kind in kinds for field in fields(kind)}
    return {
        "seeds": SEEDS,
        **{name: default for name, default in own.items() if default is not MISSING},
    }


def _present(options: OptionValues, key: str, default: object) -> object:
    """Return the present value of an input, of the first series that has it."""
    tail = key.removeprefix("series.")
    if tail == key or "series" not in options:
        return options.get(key, default)
    series = series_of(options)
    name = series_name(series, tail)
    own = tail.removeprefix(f"{name}.")
    entries = series.values() if name == "*" else [series[name]]
    return next((entry[own] for entry in entries if own in entry), None)


ANOTHER = "another value"


def _require_effect(experiment: Experiment, options: OptionValues, key: str, place: str) -> None:
    """Raise SkitError for an input that every point of the grid sets to a value of its own."""
    axes = derived_of(options).over
    rest = {name: value for name, value in options.items() if name not in GRID}
    before = [point for _, point in points_of(axes, rest)]
    after = [point for _, point in points_of(axes, replace_input(rest, place, ANOTHER))]
    require(
        before != after,
        f"--set {key}: {experiment.name} varies it, so that it cannot be set",
    )


def _require_accepted(experiment: Experiment, options: OptionValues) -> None:
    """Raise SkitError where the deployments, methods or options of an experiment are impossible."""
    if experiment.command == "bench":
        for entry in series_of(options).values():
            decoded = convert(DecodedSeries, entry)
            decoded.load_deployment()
            parse_method(decoded.method)
    if experiment.command in SERVED:
        names = {field.name for field in fields(SimulationOptions)}
        own = {name: value for name, value in options.items() if name in names}
        given = from_keywords(SimulationOptions, own)
        count = len(given.label)
        for name in (*MEANINGS, "acceptance", "deployment"):
            values = getattr(given, name)
            require(
                not count or len(values) in (1, count),
                f"--set {name}: {experiment.name} has {count} series; give one value for all or "
                f"{count}, not {len(values)}",
            )
        for deployment in dict.fromkeys(given.deployment):
            load(deployment, given.replaced)
    if experiment.command == "capacity":
        CapacityRule(**select_fields(CapacityRule, options))
