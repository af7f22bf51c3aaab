"""Work in parallel, in processes of this machine or on a Ray cluster; each result is kept until the
study is whole.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from specbench_kit.core.errors import SkitError
from specbench_kit.runs.parts import KeptParts
from specbench_kit.serving.options import Backend
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate

T = TypeVar("T")
Work = Sequence[tuple[object, ...]]
"""The arguments of every part."""
RETRIES = 5
"""How often a part is begun again whose node of a cluster was lost."""


@dataclass
class Workers:
    """The processes that do the work of a study, on this machine or on a Ray cluster, and the parts
    that are done.
    """

    jobs: int = 1
    backend: Backend = "processes"
    parts: KeptParts | None = None
    _steps: int = 0

    def map(self, function: Callable[..., T], work: Work, kind: Any = None) -> Iterator[T]:
        """Return what the function returns for each tuple of arguments, in their order.

        Each result is kept as soon as it is there if its type `kind` is given, by which it is read
        when the study is resumed; the parts that are kept are not computed again.
        """
        self._steps += 1
        return self._in_order(function, work, kind, self._steps)

    def _in_order(
        self, function: Callable[..., T], work: Work, kind: Any, step: int
    ) -> Iterator[T]:
        parts = None if kind is None else self.parts
        done: dict[int, T] = {}
        if parts is not None:
            done = parts.results(step, kind)
        missing = {part: work[part] for part in range(len(work)) if part not in done}
        ending = self._as_they_end(function, missing)
        for part in range(len(work)):
            while part not in done:
                with nullcontext() if parts is None else parts.kept_when_interrupted():
                    ended, result = next(ending)
                done[ended] = result
                if parts is not None:
                    parts.add(step, ended, result)
            yield done.pop(part)

    def _as_they_end(
        self, function: Callable[..., T], work: dict[int, tuple[object, ...]]
    ) -> Iterator[tuple[int, T]]:
        if self.backend == "ray":
            yield from _on_ray(function, work)
        elif self.jobs == 1:
            yield from (_numbered(part, function, arguments) for part, arguments in work.items())
        elif work:
            from joblib import Parallel, delayed

            parallel = Parallel(n_jobs=self.jobs, return_as="generator_unordered")
            yield from parallel(
                delayed(_numbered)(part, function, arguments) for part, arguments in work.items()
            )


def _numbered(
    part: int, function: Callable[..., T], arguments: tuple[object, ...]
) -> tuple[int, T]:
    return part, function(*arguments)


def simulate_and_measure(
    scenario: Scenario, seed: int, measure: Callable[[Scenario, SimulationResult], T]
) -> T:
    """Return what `measure` makes of one simulation; only that has to leave the process."""
    return measure(scenario, simulate(scenario, seed))


def require_cluster() -> None:
    """Connect to the Ray cluster that is running; raise SkitError if there is none."""
    try:
        import ray
    except ImportError as error:
        raise SkitError("--backend ray needs Ray: pip install 'specbench-kit[ray]'") from error
    try:
        if not ray.is_initialized():
            ray.init(address="auto", log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SkitError(
            "no Ray cluster runs here: start one with 'ray start --head', or set RAY_ADDRESS"
        ) from error


def _on_ray(
    function: Callable[..., T], work: dict[int, tuple[object, ...]]
) -> Iterator[tuple[int, T]]:
    """Yield each part with its result as it ends; a part whose node is lost begins again on
    another.
    """
    require_cluster()
    import ray
    from ray.exceptions import RayError, RayTaskError

    begin = ray.remote(max_retries=RETRIES)(_called).remote
    try:
        running = {begin(function, arguments): part for part, arguments in work.items()}
        while running:
            (ended, *_), _ = ray.wait(list(running))
            yield running.pop(ended), ray.get(ended)
    except RayTaskError as error:
        if isinstance(error.cause, RayError):  # the arguments could not be read there
            reason = str(error.cause).partition("\n")[0]
            raise SkitError(
                f"a node of the Ray cluster lacks this version of the kit: {reason}"
            ) from error
        raise error.cause from error  # the error of the part itself
    except (RayError, ConnectionError) as error:
        raise SkitError(
            "the Ray cluster was lost: start it again, then go on with --resume"
        ) from error


def _called(function: Callable[..., T], arguments: tuple[object, ...]) -> T:
    return function(*arguments)
