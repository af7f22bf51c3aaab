"""The methods that a benchmark runs: the named ones, and the methods that `all` and `group:NAME`
stand for.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields

from specbench_kit.core.errors import MethodError, SkitError, by_reason
from specbench_kit.deployments.base import RECORDED
from specbench_kit.methods.base import GROUPS, LONGEST_DRAFT, Method, methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.models.catalogue import resolve_target
from specbench_kit.models.draft_library import AUTO, bundled_for
from specbench_kit.runs.document import RunFields
from specbench_kit.runs.provenance import without_folders
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.tuned_options import TunedOptions, bundled_file, load

ALL = "all"
GROUP = "group:"


def expand(specs: Sequence[str], baseline: bool) -> dict[str, bool]:
    """Return every spec to run, and True for those that were named: others are left out if they
    cannot run here.

    `all` stands for every method with its default options, `group:NAME` for those of a group. The baseline does not
    count as a further method if it is decoded anyway.
    """
    groups = [group for spec in specs for group in _groups(spec)]
    named = dict.fromkeys((spec for spec in specs if not _groups(spec)), True)
    distinct: dict[Method, str] = {}
    for spec in named:
        first = distinct.setdefault(parse_method(spec), spec)
        if first != spec:
            raise SkitError(
                f"'{first}' and '{spec}' are the same method with the same options: name it once"
            )
    # Without options a method may equal a named spec that only spells its defaults out.
    unnamed = [
        name
        for name, kind in methods.all().items()
        if kind.group in groups and _has_defaults(kind) and not (baseline and name == BASELINE)
    ]
    return {
        name: False for name in unnamed if name in named or parse_method(name) not in distinct
    } | named


def _has_defaults(kind: type[Method]) -> bool:
    """Return True if a method can be made without options."""
    return all(
        field.default is not MISSING or field.default_factory is not MISSING
        for field in fields(kind)
    )


def chosen(settings: BenchSettings) -> dict[str, bool]:
    """Return the specs of a benchmark as `expand` does, with tuned options for those that have none
    of their own.
    """
    specs = expand(settings.methods, settings.baseline)
    tuned = tuned_options(settings)
    return specs if tuned is None else {tuned.spec(spec): named for spec, named in specs.items()}


def describe_choice(is_named: bool) -> RunFields:
    """Return what `run.json` says of a method that nobody named; nothing of one that was."""
    return {} if is_named else {"is_named": False}


def tuned_options(settings: BenchSettings) -> TunedOptions | None:
    """Return the tuned options that a benchmark names; `auto`: those bundled for its target and
    deployment.
    """
    if settings.tuned is None:
        return None
    if str(settings.tuned) != AUTO:
        return load(settings.tuned)
    target = resolve_target(settings.target)
    folder = None if settings.server else bundled_for(target)
    return load(
        bundled_file(folder, target, settings.deployment.name if settings.deployment else None)
    )


def describe_tuning(settings: BenchSettings) -> dict[str, RunFields]:
    """Return what `run.json` says of the tuned options, by the spec of each method that takes or
    lacks them.
    """
    tuned = tuned_options(settings)
    if tuned is None:
        return {}
    specs = chosen(settings)
    untuned = tuned.lacking(specs)
    doubts = tuned.doubts(
        settings.deployment.name if settings.deployment else RECORDED, settings.batch_size
    )
    taken = {method.spec for method in tuned.methods.values()}
    file = without_folders(str(settings.tuned))
    return {
        spec: {
            "tuning": {"file": file, "is_untuned": True}
            if spec in untuned
            else {"file": file, "doubts": doubts}
        }
        for spec in specs
        if spec in untuned or spec in taken
    }


def usable(
    settings: BenchSettings, make: Callable[[str], Method]
) -> tuple[dict[str, Method], dict[str, str]]:
    """Return the prepared methods by spec, and the reasons why others of `all` or of a group cannot
    run here.

    A named method that cannot be prepared is an error, which names the method where there are
    several; one whose policy fails is left out, unless no other is ready.
    """
    ready: dict[str, Method] = {}
    left_out: dict[str, str] = {}
    failed: list[MethodError] = []
    specs = chosen(settings)
    for spec, named in specs.items():
        try:
            ready[spec] = make(spec)
        except MethodError as error:
            failed.append(error)
            left_out[spec] = str(error).removeprefix(f"{spec}: ")
        except SkitError as error:
            if named and (len(specs) == 1 or str(error).startswith(spec.partition(":")[0])):
                raise
            if named:
                raise SkitError(f"{spec}: {error}") from error
            left_out[spec] = str(error).removeprefix(f"{spec}: ")
    if failed and not ready:
        raise failed[0]
    if not ready:
        reasons = [f"{', '.join(alike)}: {reason}" for reason, alike in by_reason(left_out).items()]
        raise SkitError(f"no method can run here: {'; '.join(reasons)}")
    return ready, left_out


def longest_draft(specs: Iterable[str]) -> int:
    """Return the most tokens that any of these methods drafts, as far as a bound of them has to
    reach.
    """
    return max([LONGEST_DRAFT, *(parse_method(spec).longest_draft or 0 for spec in specs)])


def _groups(spec: str) -> Sequence[str]:
    """Return the groups that `all` or `group:NAME` stands for; none for the spec of a method."""
    if spec == ALL:
        return GROUPS
    if not spec.startswith(GROUP):
        return ()
    group = spec.removeprefix(GROUP)
    used = {kind.group for kind in methods.all().values()}
    if group not in used:
        raise SkitError(
            f"no methods of group '{group}'; known: {', '.join(name for name in GROUPS if name in used)}"
        )
    return (group,)
