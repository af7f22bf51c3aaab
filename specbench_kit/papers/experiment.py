"""Published experiments as data: what to run, which numbers the paper prints, and which inputs it
leaves open.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct, structs

from specbench_kit.core.errors import MOST_SUGGESTED, SkitError, did_you_mean, require
from specbench_kit.core.option import OptionValues
from specbench_kit.core.typed_json import convert
from specbench_kit.papers.derived import Side, derived_of
from specbench_kit.papers.figure_row import InputValue, Point, PointValue

LIBRARY = Path(__file__).with_name("library")
BOUNDS = ("at least", "at most")
"""Bounds that a paper may state in place of a number; a TOML file writes them as `at_least` and
`at_most`.
"""
ROLES = ("input", "fitted", "half fitted", "identity", "predicted")
"""What a published number is to its experiment.

An `input` was put into the run, a `fitted` one is met because an unknown was chosen to meet it, a
`half fitted` one is a ratio or a difference of which one side was fitted, an `identity` follows
from other numbers of the same paper, and only a `predicted` one could have come out differently.
"""
PREDICTED = ROLES[-1]
HALF_FITTED = ROLES[2]
NOT_THE_PAPERS = "not the paper's"
"""The role of a number of a series that changed inputs made something else."""
STATED_ROLES = tuple(role for role in ROLES if role != HALF_FITTED)
"""Roles that a TOML file may state; what is half fitted follows from what its two sides are."""
WORLD = "world"
"""The file of a paper's library that holds the inputs of all its simulated experiments."""
NAME = "@"
"""Begins the name of a value of the paper's world."""
GRID = frozenset({"over", "ratios", "differences", "averages", "means", "picks"})
"""Options of an experiment beyond those of its command: axes of a grid, and figures derived from
the rows.
"""


class Assumed(Struct, frozen=True):
    """An input that the paper does not give."""

    name: Annotated[str, Meta(description="what is assumed")]
    value: Annotated[str, Meta(description="the assumed value, in words")]
    effect: Annotated[str, Meta(description="how the result depends on it")]
    key: Annotated[
        str,
        Meta(
            description="option, or field of the deployment, that holds it; empty if there is none"
        ),
    ] = ""
    values: Annotated[tuple[object, ...], Meta(description="further plausible values of it")] = ()
    change: Annotated[
        str,
        Meta(
            description="another value as --set takes it, key=value, of an input whose effect takes too "
            "long to be simulated each time; empty if there is none"
        ),
    ] = ""
    inputs: Annotated[
        tuple[str, ...], Meta(description="further options that replace the assumed value")
    ] = ()

    @property
    def example(self) -> str:
        """What `--set` takes to change the input; nothing if no option changes it."""
        return f"{self.key}={self.values[0]}" if self.key and self.values else self.change

    @property
    def options(self) -> frozenset[str]:
        """The options that replace the assumed value."""
        return frozenset({self.key, self.change.partition("=")[0], *self.inputs}) - {""}


class Published(Struct, frozen=True):
    """A published number: its series, its point of the grid (`where`), and the figure of a row that
    it is compared to.

    `value` is None if the kit's authors do not have the number. Where the paper states a bound instead of a number,
    `bound` is one of `BOUNDS` and `value` is the limit.

    `role` is one of `ROLES`; `fitted_to` says what was chosen to meet a fitted number. `null` is what the figure would
    be without any effect, 1 for a speedup: then the effect is scored, not the figure. `unaffected` is the same of a
    figure that is scored itself, as the printed rate of another system is. `points` is the largest distance between
    both numbers at which a small effect counts as met, in place of the experiment's goal. `measured` says what a figure
    is that has no name of its own, the metric `value`, with its unit.
    """

    series: Annotated[str, Meta(description="series of the experiment that the number belongs to")]
    metric: Annotated[str, Meta(description="figure of a simulated row that it is compared with")]
    value: Annotated[
        float | None,
        Meta(
            description="the published number, or the limit if there is a bound; null if the kit's authors do "
            "not have it"
        ),
    ]
    where: Annotated[Point, Meta(description="point of the experiment's grid: value by axis")] = {}
    note: Annotated[str, Meta(description="remark on the number")] = ""
    bound: Annotated[
        str,
        Meta(
            description="'at least' or 'at most' if the paper states a bound in place of a number; else empty"
        ),
    ] = ""
    role: Annotated[
        str,
        Meta(
            description="what the number is to its experiment: input, fitted, half fitted, identity or "
            "predicted"
        ),
    ] = PREDICTED
    fitted_to: Annotated[str, Meta(description="what was chosen to meet a fitted number")] = ""
    null: Annotated[
        int | float | None,
        Meta(
            description="what the figure would be without any effect, such as 1 for a speedup, so that the "
            "effect is scored; null if no effect is stated"
        ),
    ] = None
    points: Annotated[
        int | float | None,
        Meta(
            description="largest distance between both numbers at which a small effect counts as met, in the "
            "figure's unit; null for the experiment's goal"
        ),
    ] = None
    measured: Annotated[
        str, Meta(description="what a figure without a name of its own is, with its unit")
    ] = ""
    unaffected: Annotated[
        int | float | None,
        Meta(
            description="what the figure would be without any effect if the figure itself is scored; null if "
            "that is not stated"
        ),
    ] = None


class Contradiction(NamedTuple):
    """Claims of one paper that exclude each other, and the argument; a test computes what the
    argument says.
    """

    claims: str
    argument: str


class Missing(Struct, frozen=True, forbid_unknown_fields=True):
    """What keeps numbers of an experiment from being met: what the paper does not give, and where a
    reader of the paper finds that.

    It holds for the `series`, or for all if none is named, for the `metric` if one is named, and at
    the points of the grid that agree with `where`.
    """

    because: str
    series: tuple[str, ...] = ()
    metric: str = ""
    where: Point = {}

    def holds_for(self, number: Published) -> bool:
        """Return whether it says what is missing for a number."""
        return (
            (not self.series or number.series in self.series)
            and (not self.metric or number.metric == self.metric)
            and self.where.items() <= number.where.items()
        )


class NotCompared(NamedTuple):
    """What a paper shows that no experiment of the library is held against, and why."""

    claim: str
    because: str


class MainClaim(NamedTuple):
    """What a paper claims above all, in words that follow "that", and the numbers of one experiment
    that carry it.

    These are the numbers of some `series`, or by how much the experiment's reference series is ahead of them where
    `is_lead`.
    """

    words: str
    experiment: str
    series: tuple[str, ...]
    is_lead: bool = False


class Steps(Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of an experiment's inputs, drawn as steps from a first point of its `axis` to the printed
    numbers.

    What is drawn is the `metric` of `series` over that of the series `over`. Each of the `single` points
    changes one thing of the `first`; the `cumulative` ones keep the changes of
    those before them. `printed` holds the printed number by the value of the axis `by`, and `sentence` says what
    the steps come to.
    """

    series: str
    over: str
    metric: str
    axis: str
    by: str
    first: str
    single: tuple[str, ...]
    cumulative: tuple[str, ...]
    printed: dict[str, float]
    unit: str
    sentence: str


class PublishedTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A table `[[published]]`: one number for every combination of the lists in `where`.

    The numbers are `values`, in the order of the combinations, or one `value` or bound for all of them; false stands
    for a number that the kit's authors do not have. `role` and `measured` are those of the file where they are empty.
    """

    series: str
    metric: str
    value: int | float | bool = False
    values: list[int | float | bool] | None = None
    at_least: int | float | None = None
    at_most: int | float | None = None
    where: dict[str, InputValue] = {}
    role: str = ""
    fitted_to: str = ""
    measured: str = ""
    note: str = ""
    null: int | float | None = None
    points: int | float | None = None
    unaffected: int | float | None = None

    @property
    def bound(self) -> tuple[str, float | bool]:
        """The bound that the paper states, of `BOUNDS`, and its limit; "" and the value without a bound."""
        limits = dict(zip(BOUNDS, (self.at_least, self.at_most), strict=True))
        stated = ((bound, limit) for bound, limit in limits.items() if limit is not None)
        return next(stated, ("", self.value))


class ExperimentFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of an experiment's TOML file; `Experiment` says what its fields mean."""

    command: str
    summary: str
    source: str
    options: OptionValues
    published: tuple[PublishedTable, ...] = ()
    assumed: tuple[Assumed, ...] = ()
    role: str = ""
    measured: str = ""
    against: str = ""
    reading: str = ""
    goal: float = 0.1
    prevented: str = ""
    sensitivity: OptionValues = {}
    differs: dict[str, str] = {}
    variants: tuple[tuple[str, ...], ...] = ()
    takes: str = ""
    steps: Steps | None = None
    missing: tuple[Missing, ...] = ()


class ClaimTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[main_claim]` of a paper's world."""

    words: str
    experiment: str
    series: tuple[str, ...]
    is_lead: bool = False


class ContradictionTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A table `[[contradiction]]` of a paper's world."""

    claims: str
    argument: str


class NotComparedTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A table `[[not_compared]]` of a paper's world."""

    claim: str
    because: str


class WorldFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a paper's `world.toml`; `World` says what its fields mean."""

    title: str
    commands: frozenset[str]
    main_claim: ClaimTable
    options: OptionValues = {}
    assumed: tuple[Assumed, ...] = ()
    contradiction: tuple[ContradictionTable, ...] = ()
    not_compared: tuple[NotComparedTable, ...] = ()
    names: OptionValues = {}
    named: frozenset[str] = frozenset()
    terms: dict[str, str] = {}


class World(NamedTuple):
    """What all simulated experiments of a paper share: options of those `commands`, and assumed
    inputs.

    It also has the paper's main claim, what its numbers exclude, and what is not compared. `names`
    are values that series write as `@name`, and `named` are the options of a series that have to be
    written so: a pair is then one pair wherever it decodes. `terms` says what the names of series
    stand for.
    """

    commands: frozenset[str]
    options: OptionValues
    assumed: tuple[Assumed, ...]
    main_claim: MainClaim
    contradictions: tuple[Contradiction, ...]
    not_compared: tuple[NotCompared, ...] = ()
    names: OptionValues = MappingProxyType({})
    named: frozenset[str] = frozenset()
    terms: Mapping[str, str] = MappingProxyType({})
    title: str = ""


@dataclass(frozen=True)
class Experiment:
    """A published experiment: the options of its command, the published numbers and the assumed
    inputs.

    It counts as reproduced if no number is off by more than the share `goal`; `prevented` says what prevents that.
    `against` is the series that all ratios are taken to. Each of the `variants` are series that stand for one row of
    the paper under different assumptions, so that a printed number counts once. Inputs are varied with the
    `sensitivity` options on top, which may make a run shorter. `takes` says about how long the experiment takes.
    """

    name: str
    command: str
    summary: str
    source: str
    options: OptionValues
    published: tuple[Published, ...]
    assumed: tuple[Assumed, ...] = ()
    against: str = ""
    reading: str = ""
    goal: float = 0.1
    prevented: str = ""
    sensitivity: OptionValues = field(default_factory=dict)
    differs: Mapping[str, str] = field(default_factory=dict)
    """Inputs of the paper's world that are different here, each with the reason."""
    variants: tuple[tuple[str, ...], ...] = ()
    takes: str = ""
    steps: Steps | None = None
    missing: tuple[Missing, ...] = ()
    """What is missing for the numbers that are not within the goal; of several the first counts."""

    def missing_for(self, number: Published) -> str:
        """Return what keeps a number from being met; empty if nothing is said of it."""
        return next((entry.because for entry in self.missing if entry.holds_for(number)), "")

    @property
    def paper(self) -> str:
        """The paper's name, which is the folder of the experiment's file."""
        return self.name.partition("/")[0]


@cache
def experiments() -> dict[str, Experiment]:
    """Return every experiment of the library by `paper/name`."""
    files = {
        f"{path.parent.name}/{path.stem}": path
        for path in sorted(LIBRARY.glob("*/*.toml"))
        if path.stem != WORLD
    }
    shared = worlds()
    read = {
        name: parse_file(name, tomllib.loads(path.read_text("utf-8")))
        for name, path in files.items()
    }
    return {
        name: _experiment_of(name, in_world(name, file, shared[files[name].parent.name]))
        for name, file in read.items()
    }


def find_experiments(name: str) -> list[Experiment]:
    """Return the experiment of that name, all experiments of a paper, or `all`; raise SkitError if
    there is none.
    """
    library = experiments()
    matches = [
        experiment
        for experiment in library.values()
        if name in ("all", experiment.name, experiment.paper)
    ]
    if not matches:
        papers = dict.fromkeys(experiment.paper for experiment in library.values())
        hint = did_you_mean(name, [*library, *papers], MOST_SUGGESTED)
        raise SkitError(
            f"unknown experiment '{name}'{hint}; skit list experiments shows all {len(library)}"
        )
    return matches


def parse_file(name: str, content: OptionValues) -> ExperimentFile:
    """Return what a parsed TOML file says; raise SkitError where a key is wrong."""
    try:
        return convert(ExperimentFile, content)
    except ValueError as error:
        raise SkitError(f"the experiment {name}: {error}") from error


def build_experiment(name: str, content: OptionValues) -> Experiment:
    """Return the experiment of a parsed TOML file; raise SkitError where a key is wrong."""
    return _experiment_of(name, parse_file(name, content))


def _experiment_of(name: str, file: ExperimentFile) -> Experiment:
    try:
        published = [
            number for table in file.published for number in _published_numbers(table, file)
        ]
        unknown = {series for several in file.variants for series in several} - {
            number.series for number in published
        }
        require(not unknown, f"variants without a published number: {', '.join(sorted(unknown))}")
        unknown = {series for entry in file.missing for series in entry.series} - {
            number.series for number in published
        }
        require(not unknown, f"missing for series without a number: {', '.join(sorted(unknown))}")
        return Experiment(
            name,
            file.command,
            file.summary,
            file.source,
            file.options,
            tuple(_with_half_fitted(published, file.options)),
            file.assumed,
            file.against,
            file.reading,
            file.goal,
            file.prevented,
            file.sensitivity,
            file.differs,
            file.variants,
            file.takes,
            file.steps,
            file.missing,
        )
    except (ValueError, SkitError) as error:
        raise SkitError(f"the experiment {name}: {error}") from error


def _with_half_fitted(published: Sequence[Published], options: OptionValues) -> list[Published]:
    """Return the numbers; predicted ratios and differences of which one side was fitted become half
    fitted.
    """
    sides: dict[str, list[Side]] = {}
    for side in derived_of(options).sides:
        sides.setdefault(side.label, []).append(side)
    marked = list(published)
    for place, number in enumerate(published):
        fitted_to = [
            f"{found.fitted_to}, in the {side.name}"
            for side in sides.get(number.series, ())
            for found in marked
            if found.fitted_to and _is_part(found, side.figures, {**number.where, **side.point})
        ]
        if number.role == PREDICTED and fitted_to:
            words = "; ".join(dict.fromkeys(fitted_to))
            marked[place] = structs.replace(number, role=HALF_FITTED, fitted_to=words)
    return marked


def _is_part(number: Published, figures: Sequence[str], point: Point) -> bool:
    """Return whether a number is of one of the figures, named `series/metric`, at a point of the
    grid.
    """
    return f"{number.series}/{number.metric}" in figures and number.where.items() <= point.items()


class SeedOptions(Struct):
    """The options about seeds: the first one, and how many there are if that is stated."""

    seed: int = 0
    seeds: int | None = None

    @classmethod
    def of(cls, options: OptionValues) -> "SeedOptions":
        """Return those among the options of an experiment."""
        return convert(cls, options)


class SeriesTable(Struct):
    """The series among an experiment's options: the inputs of each by its label."""

    series: dict[str, dict[str, InputValue]] = {}


def series_of(options: OptionValues) -> Mapping[str, Mapping[str, InputValue]]:
    """Return the inputs of every series among the options of an experiment, by label."""
    return convert(SeriesTable, options).series


def worlds() -> dict[str, World]:
    """Return the world of every paper: the inputs of its simulated experiments, and what its
    numbers exclude.
    """
    return {file.parent.name: _read_world(file) for file in sorted(LIBRARY.glob(f"*/{WORLD}.toml"))}


def _read_world(path: Path) -> World:
    try:
        file = convert(WorldFile, tomllib.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise SkitError(f"{path}: {error}") from error
    return World(
        title=file.title,
        commands=file.commands,
        options=file.options,
        assumed=file.assumed,
        main_claim=MainClaim(**structs.asdict(file.main_claim)),
        contradictions=tuple(Contradiction(**structs.asdict(own)) for own in file.contradiction),
        not_compared=tuple(NotCompared(**structs.asdict(own)) for own in file.not_compared),
        names=file.names,
        named=file.named,
        terms=file.terms,
    )


def in_world(name: str, file: ExperimentFile, world: World) -> ExperimentFile:
    """Return an experiment with the inputs and assumptions of its paper's world, if it is one of
    the world's commands.

    Raise SkitError where the experiment gives one of the world's inputs another value and does not
    say why.
    """
    if file.command in world.commands:
        _require_named(name, file.options, world, file.differs)
    options = {key: _named(name, value, world) for key, value in file.options.items()}
    if file.command not in world.commands:
        return structs.replace(file, options=options)
    unsaid = (options.keys() & world.options.keys()) - file.differs.keys()
    require(not unsaid, f"{name} changes {', '.join(sorted(unsaid))} of the paper's world unsaid")
    own = {assumed.name for assumed in file.assumed}
    shared = [assumed for assumed in world.assumed if assumed.name not in own]
    return structs.replace(
        file, options={**world.options, **options}, assumed=(*file.assumed, *shared)
    )


def _require_named(
    name: str, options: OptionValues, world: World, differs: Mapping[str, str]
) -> None:
    """Raise SkitError for a value of an experiment or of one of its series that is not one of the
    world's, unsaid.
    """
    entries: list[tuple[str, OptionValues]] = [
        *series_of(options).items(),
        ("its systems", options),
    ]
    for label, entry in entries:
        own = {
            key for key in world.named & entry.keys() - differs.keys() if not _is_named(entry[key])
        }
        require(
            not own,
            f"{name} has its own {', '.join(sorted(own))} for {label}, unlike the paper's world",
        )


def _is_named(value: object) -> bool:
    """Return whether a value, or all values of a list, are names of the world's values."""
    return all(
        str(part).startswith(NAME) for part in (value if isinstance(value, list) else [value])
    )


def _named(name: str, value: object, world: World) -> object:
    """Return a value with the world's values in place of their names, which may stand in a list or
    a table.
    """
    if isinstance(value, list):
        return [_named(name, part, world) for part in value]
    if isinstance(value, dict):
        return {key: _named(name, part, world) for key, part in value.items()}
    if not (isinstance(value, str) and value.startswith(NAME)):
        return value
    key = value.removeprefix(NAME)
    require(
        key in world.names,
        f"{name}: the paper's world has no {key}{did_you_mean(key, list(world.names))}",
    )
    return world.names[key]


def _published_numbers(table: PublishedTable, file: ExperimentFile) -> Iterator[Published]:
    """Yield one number for every combination of the lists in `where`; a value of false stands for a
    missing number.
    """
    role = table.role or file.role
    known = ", ".join(STATED_ROLES)
    require(
        role in STATED_ROLES,
        f"{table.series}, {table.metric}: the role is one of {known}, not '{role}'",
    )
    require(
        (role == "fitted") == bool(table.fitted_to),
        f"{table.series}, {table.metric}: a fitted number, and no other, says in fitted_to what was chosen",
    )
    axes = {axis: values for axis, values in table.where.items() if isinstance(values, list)}
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    bound, single = table.bound
    values = table.values or [single] * len(points)
    require(
        len(values) == len(points),
        f"{table.series}, {table.metric}: {len(values)} values for {len(points)} places",
    )
    for point, value in zip(points, values, strict=True):
        yield Published(
            table.series,
            table.metric,
            None if value is False else float(value),
            convert(dict[str, PointValue], {**table.where, **point}),
            table.note,
            bound,
            role,
            table.fitted_to,
            table.null,
            table.points,
            table.measured or file.measured,
            table.unaffected,
        )
