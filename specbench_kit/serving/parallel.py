"""Simulations side by side, in processes of this machine or on a Ray cluster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from specbench_kit.core.errors import SkitError
from specbench_kit.serving.options import Backend
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate

T = TypeVar("T")


def in_turn(function: Callable[..., T], work: Sequence[tuple[Any, ...]], jobs: int = 1) -> Iterator[T]:
    """What a function makes of each item, in their order, whatever the number of processes.

    Items come as they are done where the backend can do that, as Ray cannot.
    """
    from joblib import Parallel, delayed
    from joblib.parallel import get_active_backend

    streams = get_active_backend()[0].supports_return_generator
    parallel = Parallel(n_jobs=jobs, return_as="generator" if streams else "list")
    yield from parallel(delayed(function)(*one) for one in work)


def simulate_all(
    work: Sequence[tuple[Scenario, int]], measure: Callable[[Scenario, SimulationResult], T], jobs: int = 1
) -> list[T]:
    """What `measure` makes of each scenario's run with its seed, in their order, whatever the number of processes.

    Only what it returns leaves a process.
    """
    return list(in_turn(measured, [(*one, measure) for one in work], jobs))


def measured(scenario: Scenario, seed: int, measure: Callable[[Scenario, SimulationResult], T]) -> T:
    """What `measure` makes of one run."""
    return measure(scenario, simulate(scenario, seed))


@contextmanager
def backend(name: Backend) -> Iterator[None]:
    """Where the work within is done; `ray` connects to the cluster that runs."""
    if name == "processes":
        yield
        return
    _join_cluster()
    from joblib import parallel_config

    with parallel_config(backend="ray"):
        yield


def _join_cluster() -> None:
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
