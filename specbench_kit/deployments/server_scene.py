"""A deployment in one line: a target on cards of a server with what drafts beside it, under a serving
engine.

`server:gpu=h100,target=llama3.1-8b,drafter=eagle3` derives both from their shapes and the card.
"""

from dataclasses import dataclass

from specbench_kit.core.errors import require
from specbench_kit.core.specs import from_options
from specbench_kit.profilers.cards import Table
from specbench_kit.profilers.devices import Device, find_device
from specbench_kit.profilers.engine_costs import find_engine_costs
from specbench_kit.profilers.prices import read_prices
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.subject import find_subject, require_architecture
from specbench_kit.profilers.variants import VARIANTS

SCENE = "server"
"""What the name of such a deployment begins with."""


@dataclass(frozen=True)
class ServerScene:
    """A target on `cards` of one kind and a drafter beside it, on as many or on `draft_cards`.

    `drafter` is an architecture card, or what follows from the target: an EAGLE or EAGLE-3 head, a layer that
    predicts several tokens, a block drafter, or the target's own weights in fewer bits. `engine` names what a
    serving engine adds to each forward.
    """

    gpu: str
    target: str
    drafter: str
    engine: str = "vllm"
    cards: int = 1
    draft_cards: int | None = None

    def __post_init__(self) -> None:
        require(
            self.cards >= 1 and (self.draft_cards is None or self.draft_cards >= 1),
            f"{SCENE}: cards and draft_cards must be at least 1",
        )

    @property
    def drafting(self) -> str:
        """The architecture card of what drafts."""
        return f"{self.drafter}:{self.target}" if self.drafter in VARIANTS else self.drafter

    def content(self) -> Table:
        """Return what a file of this deployment would hold."""
        device = find_device(self.gpu)
        self._require_room(device)
        costs = find_engine_costs(self.engine)
        rents = read_prices()
        known = [rents[title] for title in (device.name, *device.aliases) if title in rents]
        title = _several(self.cards, device.title)
        draft_cards = self.draft_cards or self.cards
        rent = {"price_per_hour": self.cards * known[0].price_per_hour} if known else {}
        return {
            "name": f"{self.target}-{self.drafter}-{device.name}".replace(":", "-"),
            "description": f"{self.target} on {title} and {self.drafting} beside it, under {costs.title}.",
            "source": f"Both models' times are derived for the card; the engine's costs: {costs.source}.",
            "drafter": {
                "device": _several(draft_cards, device.title),
                "profile": f"{self.drafting}@{draft_cards}x{self.gpu}",
                "engine": self.engine,
                "placement": "server",
            },
            "verifier": {
                "device": title,
                "profile": f"{self.target}@{self.cards}x{self.gpu}",
                "engine": self.engine,
                **rent,
            },
        }

    def _require_room(self, device: Device) -> None:
        """Raise SkitError if the cards cannot hold the weights of both models."""
        both = [(self.target, self.cards), (self.drafting, self.draft_cards or self.cards)]
        weights = [
            Roofline(
                device, require_architecture(find_subject(name, "target")), device.default_dtype
            ).weight_bytes
            / cards
            for name, cards in both
        ]
        require(
            not device.memory_bytes or sum(weights) < device.memory_bytes,
            f"{SCENE}: {self.target} and {self.drafting} have {sum(weights) / 1e9:,.0f} GB of weights on each card, "
            f"and {device.title} holds {device.memory_bytes / 1e9:g} GB: give more cards, as in cards=4, or weights in "
            f"fewer bits, as in target=4bit:{self.target}",
        )


def _several(cards: int, title: str) -> str:
    return f"{cards} x {title}" if cards > 1 else title


def names_a_scene(name: str) -> bool:
    """Return whether a deployment's name describes a server in one line."""
    return name.partition(":")[0] == SCENE


def parse_scene(name: str) -> ServerScene:
    """Return the scene of a name such as `server:gpu=h100,target=llama3.1-8b,drafter=eagle3`."""
    return from_options(SCENE, ServerScene, name.partition(":")[2])
