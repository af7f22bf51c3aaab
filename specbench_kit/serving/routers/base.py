"""The router contract: which server of a pool gets a round.

Routers of real servers (those of vLLM, SGLang, Dynamo and llm-d) choose once per request, at its
start: the KV of a generation is on one server, and moving it costs its prefill again. Here a
request is a response with all its rounds, so that a router is asked at the first round of each
response, and again if the server of a response fails. A router that is `per_round` is asked at
every round; where it leaves the server that has the session's KV, that KV is dropped, and the whole
context is computed again on the other server.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from specbench_kit.core.registry import Registry
from specbench_kit.core.specs import parse_spec
from specbench_kit.serving.schedulers.waiting import WaitingRound


class RoutedServer(Protocol):
    """What a router sees of a server that is up."""

    index: int
    """Its place in the pool, from 0 on, also while others are away."""

    @property
    def sessions(self) -> Collection[int]:
        """The clients whose responses it was given and has not finished."""

    def work_s(self, request: WaitingRound, now_s: float) -> float:
        """Return the expected seconds of its batch under way and of one round of every other
        session than this one.
        """

    def round_s(self, request: WaitingRound) -> float:
        """Return the expected seconds of verifying this round there by itself, with its KV if it is
        there.
        """


Route = Callable[[WaitingRound, Sequence[RoutedServer], float], int]
"""Returns the place, among the servers that are up, of the one that gets a round, given the time in
seconds.
"""


@dataclass(frozen=True)
class Router(ABC):
    """One way to route; the fields of a subclass are its options on the command line."""

    source: ClassVar[str] = ""
    """Paper or system that it comes from."""
    per_round = False
    """Whether it is asked at every round of a response, and not at the first alone; may be a
    field.
    """

    @abstractmethod
    def routing(self) -> Route:
        """Return the function that chooses a server; its state, if it has one, is that of one
        simulation.
        """


routers: Registry[type[Router]] = Registry(
    "router", "specbench_kit.serving.routers", group="specbench_kit.routers"
)


def parse_router(spec: str) -> Router:
    """Return the router that `name:key=value,...` names."""
    return parse_spec(spec, routers)


def least(values: Sequence[float]) -> int:
    """Return the place of the smallest value, the first of several."""
    return values.index(min(values))
