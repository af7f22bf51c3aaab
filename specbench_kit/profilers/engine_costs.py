"""What serving engines add around the forwards of speculative decoding: the host's time of a step, of
speculation that is switched on, and of launching what drafts.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import Amount
from specbench_kit.decoding.kernel_latency import KernelModel
from specbench_kit.decoding.latency import GraphSteps, LatencyModel, RoundedModel
from specbench_kit.profilers import cards
from specbench_kit.profilers.cards import Text
from specbench_kit.profilers.software import KERNELS
from specbench_kit.profilers.variants import VARIANTS, Launched, split_variant

_FILE = Path(__file__).with_name("engine_costs.toml")
FAST, TYPICAL, SLOW = range(3)
"""The places of the least, the typical and the greatest value of a cost."""
Seconds = tuple[Amount, Amount, Amount]
"""The least, the typical and the greatest seconds."""
NOTHING: Seconds = (0.0, 0.0, 0.0)


class EngineCosts(Struct, frozen=True, forbid_unknown_fields=True):
    """What an engine adds to the forwards of target and drafter; each cost has a range and a source.

    A step of the target takes `step_s` more, `layer_s` more per layer and `request_s` per request. While
    speculation is switched on, whatever a round drafts, `speculating_step_s` and `speculating_request_s` are
    added, and the step takes the share `speculating_share` longer. Each forward of what drafts takes
    `draft_model_s`, `head_s` or `block_s` more, and `draft_request_s` for each request in it. `overlap` is the
    share of the shorter of the host's and the card's time that is hidden. Steps are padded to the sizes of captured
    `graphs`: up to each first number, multiples of the second, of tokens or, with `graphs_of_requests`, of requests;
    `speculating_graphs` are those while speculation is on, where they differ. `software` is the card of the
    engine's kernels; by default they are those of `skit list software` that were measured.
    """

    title: Text
    source: Text
    step_s: Seconds
    draft_model_s: Seconds
    head_s: Seconds
    block_s: Seconds
    sources: dict[str, Text]
    draft_request_s: Seconds = NOTHING
    software: Text = KERNELS
    layer_s: Seconds = NOTHING
    request_s: Seconds = NOTHING
    speculating_step_s: Seconds = NOTHING
    speculating_request_s: Seconds = NOTHING
    speculating_share: Seconds = NOTHING
    overlap: Annotated[float, Meta(ge=0, le=1)] = 0.0
    graphs: GraphSteps = ()
    graphs_of_requests: bool = False
    speculating_graphs: GraphSteps = ()

    def __post_init__(self) -> None:
        for name, costs in self.ranges.items():
            if list(costs) != sorted(costs):
                raise ValueError(f"{name} must rise from its least to its greatest value")
            if costs != NOTHING and name not in self.sources:
                raise ValueError(f"sources must say where {name} comes from")
        for name in ("graphs", "speculating_graphs"):
            steps: GraphSteps = getattr(self, name)
            if any(most <= 0 or multiple <= 0 or most % multiple for most, multiple in steps):
                raise ValueError(f"{name} must end each step at a multiple of its size")
            if [most for most, _ in steps] != sorted({most for most, _ in steps}):
                raise ValueError(f"{name} must rise from one step to the next")
            if steps and name not in self.sources:
                raise ValueError(f"sources must say where {name} comes from")

    @property
    def ranges(self) -> dict[str, Seconds]:
        """The costs by name."""
        return {
            name: getattr(self, name)
            for name in (
                "step_s",
                "layer_s",
                "request_s",
                "speculating_step_s",
                "speculating_request_s",
                "speculating_share",
                "draft_model_s",
                "head_s",
                "block_s",
                "draft_request_s",
            )
        }

    @property
    def graph_sizes(self) -> str:
        """The sizes of captured graphs in words; empty for an engine that pads no step."""
        unit = "requests" if self.graphs_of_requests else "tokens"

        def words(steps: GraphSteps) -> str:
            return ", ".join(f"multiples of {multiple} up to {most}" for most, multiple in steps)

        plain = f"{words(self.graphs)} {unit}" if self.graphs else ""
        busy = f"; while speculation is on {words(self.speculating_graphs)} {unit}"
        return plain + (busy if self.speculating_graphs else "")

    def beside_target(
        self, latency: LatencyModel, layers: int, label: str, end: int = TYPICAL
    ) -> LatencyModel:
        """Return the latency of a target's steps without speculation, at one end of the costs."""
        return self._with_host(
            latency,
            self.step_s[end] + layers * self.layer_s[end],
            self.request_s[end],
            label,
            self.graphs,
        )

    def while_speculating(
        self, latency: LatencyModel, layers: int, label: str, end: int = TYPICAL
    ) -> LatencyModel:
        """Return the latency of a target's steps while speculation is on, at one end of the costs."""
        host_s = self.step_s[end] + layers * self.layer_s[end] + self.speculating_step_s[end]
        request_s = self.request_s[end] + self.speculating_request_s[end]
        slower = _derived(latency, label).scaled(1 + self.speculating_share[end])
        graphs = self.speculating_graphs or self.graphs
        return self._with_host(slower, host_s, request_s, label, graphs)

    def beside_drafter(
        self, latency: LatencyModel, layers: int, launched: Launched, label: str, end: int = TYPICAL
    ) -> LatencyModel:
        """Return the latency of a forward of what drafts, at one end of the costs."""
        launch_s = self.launch_s(launched)[end] + layers * self.layer_s[end]
        request_s = self.request_s[end] + self.draft_request_s[end]
        graphs = self.speculating_graphs or self.graphs
        return self._with_host(latency, launch_s, request_s, label, graphs)

    def launch_s(self, launched: Launched) -> Seconds:
        """Return what each forward of such a drafter takes longer."""
        return {
            "draft model": self.draft_model_s,
            "head": self.head_s,
            "block": self.block_s,
        }[launched]

    def _with_host(
        self,
        latency: LatencyModel,
        host_s: float,
        request_s: float,
        label: str,
        graphs: GraphSteps,
    ) -> LatencyModel:
        return replace(
            _derived(latency, label),
            host_s=host_s,
            host_request_s=request_s,
            overlap=self.overlap,
            graphs=graphs,
            graphs_of_requests=self.graphs_of_requests,
        )


def _derived(latency: LatencyModel, label: str) -> RoundedModel | KernelModel:
    """Return a derived latency model; raise SkitError for one that was measured with its engine."""
    if not isinstance(latency, RoundedModel | KernelModel):
        raise SkitError(
            f"{label}: an engine's costs belong to derived profiles alone, which say what the card takes"
        )
    return latency


def launched_for(model: str) -> Launched:
    """Return what an engine launches for a drafter of that name."""
    variant = split_variant(model)
    return (VARIANTS[variant[0]].launched if variant else None) or "draft model"


def find_engine_costs(name: str) -> EngineCosts:
    """Return the costs of an engine by name; an unknown name lists the known ones."""
    known = bundled_engine_costs()
    if name not in known:
        raise cards.unknown_name("engine", name, known)
    return known[name]


@cache
def bundled_engine_costs() -> dict[str, EngineCosts]:
    """Return every engine's costs that ship with the kit, by name."""
    return {
        name: cards.parse_table(EngineCosts, card, f"the costs of the engine '{name}' in {_FILE}")
        for name, card in cards.read_toml(_FILE).items()
    }
