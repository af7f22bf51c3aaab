"""The methods that a benchmark runs: the named ones, and the methods that `all` and `group:NAME`
stand for.
"""

from collections.abc import Callable

from specbench_kit.core.errors import MethodError, SkitError, by_reason
from specbench_kit.deployments.base import RECORDED
from specbench_kit.methods.base import Method
from specbench_kit.methods.selection import expand_specs
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.models.catalogue import resolve_target
from specbench_kit.models.draft_library import AUTO, bundled_for
from specbench_kit.runs.document import RunFields
from specbench_kit.runs.provenance import without_folders
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.tuned_options import TunedOptions, bundled_file, load


def chosen(settings: BenchSettings) -> dict[str, bool]:
    """Return the specs of a benchmark as `expand_specs` does, with tuned options for those that have none
    of their own.
    """
    specs = expand_specs(settings.methods, [BASELINE] if settings.baseline else [])
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
