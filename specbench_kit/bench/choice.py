"""Which methods a benchmark is to run: those that are named, and what `all` stands for."""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields

from specbench_kit.bench.settings import Settings
from specbench_kit.errors import SkitError
from specbench_kit.methods.base import Method, methods

BASELINE = "autoregressive"
ALL = "all"


def expand(specs: Sequence[str], baseline: bool) -> dict[str, bool]:
    """Every spec to run, and whether it was named: one that was not is left out where it cannot run.

    `all` stands for every method with its default options; the baseline is no further method where it is decoded
    anyway.
    """
    named = dict.fromkeys((spec for spec in specs if spec != ALL), True)
    if ALL not in specs:
        return named
    every = {name: False for name, method in methods.all().items() if _needs_no_option(method)}
    if baseline:
        del every[BASELINE]
    return every | named


def usable(settings: Settings, make: Callable[[str], Method]) -> tuple[dict[str, Method], dict[str, str]]:
    """The methods that can be made ready, by spec, and why others of `all` cannot; of a named one this is an error."""
    ready: dict[str, Method] = {}
    left_out: dict[str, str] = {}
    for spec, named in expand(settings.methods, settings.baseline).items():
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
