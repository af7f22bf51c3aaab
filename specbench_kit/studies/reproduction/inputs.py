"""The inputs of an experiment that `--set` may change, and why a change is refused.

Nothing here loads a decoder or a simulator, so that a wrong name or value is refused at once.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from shlex import quote

from specbench_kit.core.errors import SkitError, did_you_mean, require
from specbench_kit.core.option import from_keywords
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.loading import load
from specbench_kit.methods.spec import parse_method
from specbench_kit.papers.experiment import GRID, Experiment
from specbench_kit.serving.options import CapacityRule, ServingOptions, SimulationOptions
from specbench_kit.studies.reproduction.grid import points_of, replace_input, series_name
from specbench_kit.studies.sweep.prompt_options import PromptOptions

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
    series: Mapping[str, JsonObject] = experiment.options.get("series", {})
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
    return {axis["key"] for axis in experiment.options.get("over", {}).values()}


def changed_options(
    experiment: Experiment, options: JsonObject, changes: Mapping[str, object]
) -> JsonObject:
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


def _place(experiment: Experiment, key: str) -> str:
    """Return where an input stands: a deployment's field is that of every series, if these have the
    deployments.
    """
    of_series = experiment.command == "bench" and key.partition(".")[0] in SECTIONS
    return f"series.*.{key}" if of_series else key


def _require_known(experiment: Experiment, options: JsonObject, key: str) -> None:
    head, _, tail = key.partition(".")
    if head == "series" and tail and "series" in options:
        name = series_name(options["series"], tail)
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
    series: Mapping[str, JsonObject] = experiment.options.get("series", {})
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


def _require_kind(experiment: Experiment, options: JsonObject, key: str, value: object) -> None:
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


def _defaults(command: str) -> JsonObject:
    """Return the defaults of numbers that the command itself does not check, and of the seeds."""
    kinds = () if command in SERVED else OPTIONS_OF.get(command, ())
    own = {field.name: field.default for kind in kinds for field in fields(kind)}
    return {
        "seeds": SEEDS,
        **{name: default for name, default in own.items() if default is not MISSING},
    }


def _present(options: JsonObject, key: str, default: object) -> object:
    """Return the present value of an input, of the first series that has it."""
    tail = key.removeprefix("series.")
    if tail == key or "series" not in options:
        return options.get(key, default)
    name = series_name(options["series"], tail)
    own = tail.removeprefix(f"{name}.")
    entries = options["series"].values() if name == "*" else [options["series"][name]]
    return next((entry[own] for entry in entries if own in entry), None)


ANOTHER = "another value"


def _require_effect(experiment: Experiment, options: JsonObject, key: str, place: str) -> None:
    """Raise SkitError for an input that every point of the grid sets to a value of its own."""
    axes = options.get("over", {})
    rest = {name: value for name, value in options.items() if name not in GRID}
    before = [point for _, point in points_of(axes, rest)]
    after = [point for _, point in points_of(axes, replace_input(rest, place, ANOTHER))]
    require(
        before != after,
        f"--set {key}: {experiment.name} varies it, so that it cannot be set",
    )


def _require_accepted(experiment: Experiment, options: JsonObject) -> None:
    """Raise SkitError where the deployments, methods or options of an experiment are impossible."""
    if experiment.command == "bench":
        for entry in options["series"].values():
            DecodedSeries(
                **{**entry, "replaced": tuple(entry.get("replaced", ()))}
            ).load_deployment()
            parse_method(entry["method"])
    if experiment.command in SERVED:
        names = {field.name for field in fields(SimulationOptions)}
        own = {name: value for name, value in options.items() if name in names}
        given = from_keywords(SimulationOptions, own)
        for deployment in dict.fromkeys(given.deployment):
            load(deployment, given.replaced)
    if experiment.command == "capacity":
        CapacityRule(**{name: value for name, value in options.items() if name in RULE})
