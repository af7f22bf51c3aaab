"""Opens the bench that the settings of a benchmark ask for."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from specbench_kit.core.progress import ProgressCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.constraint import require_library
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.methods.base import Method
from specbench_kit.models.pair import Pair
from specbench_kit.runs import provenance
from specbench_kit.runs.machine.probe import Probe, probe_here
from specbench_kit.studies.bench.local_bench import LocalBench, load_local_pair
from specbench_kit.studies.bench.measured_environment import MeasuredEnvironment
from specbench_kit.studies.bench.preparation import (
    RequireVerifiable,
    prepare_methods,
    select_prompts,
)
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.workbench import Workbench


def open_bench(
    settings: BenchSettings,
    datasets: Sequence[LoadedDataset],
    report: ProgressCallback = lambda *_: None,
    probe: Probe | None = None,
) -> Workbench:
    """Load the models, prepare the methods, select the prompts, and return a bench of them all."""
    for dataset in datasets:
        settings.require_answers_in(dataset)
    require_library(settings.constraint)
    probe = probe or probe_here()
    loaded = _load(settings)
    pair = loaded.pair
    with closed_on_error(loaded.close):
        models = pair.describe(provenance.hash_model)
        measured = MeasuredEnvironment(settings, pair, models, report, probe)
        prepared = prepare_methods(settings, datasets, pair, measured, loaded.require_verifiable)
        prompts = select_prompts(settings, datasets, pair, prepared)
        return loaded.make(settings, probe, pair, models, measured, prepared, prompts)


@contextmanager
def closed_on_error(close: Callable[[], None]) -> Iterator[None]:
    """End what works for a bench if the enclosed steps fail, as nobody else knows of it yet."""
    try:
        yield
    except BaseException:
        close()
        raise


class _Loaded(NamedTuple):
    """A pair, what its target refuses to verify, the kind of bench for it, and its end."""

    pair: Pair
    require_verifiable: RequireVerifiable
    make: Callable[..., Workbench]
    close: Callable[[], None]


def _load(settings: BenchSettings) -> _Loaded:
    if settings.server is None:
        return _Loaded(load_local_pair(settings), _verifies_all, LocalBench, lambda: None)
    from specbench_kit.studies.bench.served_bench import ServedBench, connect_pair

    server, pair = connect_pair(settings, settings.server)
    make = partial(ServedBench, server=server)
    return _Loaded(pair, server.require_verifiable, make, server.close)


def _verifies_all(method: Method, sampler: Sampler) -> None:
    """Refuse nothing: a target in this process verifies what every method drafts."""
