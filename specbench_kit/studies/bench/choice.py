"""Which methods a benchmark is to run: those that are named, and what `all` stands for."""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.base import GROUPS, Method, methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.tuned_options import load

BASELINE = "autoregressive"
ALL, GROUP = "all", "group:"


def expand(specs: Sequence[str], baseline: bool) -> dict[str, bool]:
    """Every spec to run, and whether it was named: one that was not is left out where it cannot run.

    `all` stands for every method with its default options, `group:NAME` for those of a group; the baseline is no
    further method where it is decoded anyway.
    """
    wanted = [groups for spec in specs if (groups := _groups(spec))]
    named = dict.fromkeys((spec for spec in specs if not _groups(spec)), True)
    chosen = _distinct(list(named))
    if not wanted:
        return named
    found = {name: kind for name, kind in methods.all().items() if any(kind.group in groups for groups in wanted)}
    every = [name for name, kind in found.items() if _needs_no_option(kind) and not (baseline and name == BASELINE)]
    return {name: False for name in every if name in named or parse_method(name) not in chosen} | named


def chosen(settings: BenchSettings) -> dict[str, bool]:
    """The same of a benchmark, with the options that were tuned for those without any."""
    found = expand(settings.methods, settings.baseline)
    if settings.tuned is None:
        return found
    tuned = load(settings.tuned)
    return {tuned.spec(spec): named for spec, named in found.items()}


def _groups(spec: str) -> Sequence[str]:
    """The groups of methods that a spec stands for, if it does."""
    if spec == ALL:
        return GROUPS
    if not spec.startswith(GROUP):
        return ()
    group = spec.removeprefix(GROUP)
    known = {kind.group for kind in methods.all().values()}
    if group not in known:
        raise SkitError(f"no methods of group '{group}'; known: {', '.join(one for one in GROUPS if one in known)}")
    return (group,)


def _distinct(specs: Sequence[str]) -> dict[Method, str]:
    """Specs by the method that they come to; two that come to one are an error."""
    found: dict[Method, str] = {}
    for spec in specs:
        first = found.setdefault(parse_method(spec), spec)
        if first != spec:
            raise SkitError(f"'{first}' and '{spec}' are the same method with the same options: name it once")
    return found


def usable(settings: BenchSettings, make: Callable[[str], Method]) -> tuple[dict[str, Method], dict[str, str]]:
    """The methods that can be made ready, by spec, and why others of `all` cannot; of a named one this is an error."""
    ready: dict[str, Method] = {}
    left_out: dict[str, str] = {}
    for spec, named in chosen(settings).items():
        try:
            ready[spec] = make(spec)
        except SkitError as error:
            if named:
                raise
            left_out[spec] = str(error).removeprefix(f"{spec}: ")
    if not ready:
        raise SkitError("no method can run here: " + "; ".join(map(": ".join, left_out.items())))
    return ready, left_out


def _needs_no_option(method: type[Method]) -> bool:
    return all(one.default is not MISSING or one.default_factory is not MISSING for one in fields(method))
