"""Simulations in parallel, in processes of this machine or on a Ray cluster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from specbench_kit.core.errors import SkitError
from specbench_kit.serving.options import Backend
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate

T = TypeVar("T")


def map_in_order(function: Callable[..., T], work: Sequence[tuple[object, ...]], jobs: int = 1) -> Iterator[T]:
    """Yield what the function returns for each tuple of arguments, in their order, from `jobs` processes.

    Results come as soon as they are there if the backend can do that, as Ray cannot.
    """
    from joblib import Parallel, delayed
    from joblib.parallel import get_active_backend

    streams = get_active_backend()[0].supports_return_generator
    parallel = Parallel(n_jobs=jobs, return_as="generator" if streams else "list")
    yield from parallel(delayed(function)(*arguments) for arguments in work)


def simulate_and_measure(scenario: Scenario, seed: int, measure: Callable[[Scenario, SimulationResult], T]) -> T:
    """Return what `measure` makes of one simulation; only that has to leave the process."""
    return measure(scenario, simulate(scenario, seed))


@contextmanager
def parallel_backend(name: Backend) -> Iterator[None]:
    """Run the work inside on this machine, or on the Ray cluster that is running."""
    if name == "processes":
        yield
        return
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError as error:
        raise SkitError("--backend ray needs Ray: pip install 'specbench-kit[ray]'") from error
    try:
        if not ray.is_initialized():
            ray.init(address="auto", log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SkitError("no Ray cluster runs here: start one with 'ray start --head', or set RAY_ADDRESS") from error
    register_ray()
    from joblib import parallel_config

    with parallel_config(backend="ray"):
        yield
