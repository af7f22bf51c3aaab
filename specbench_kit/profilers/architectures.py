"""Architecture cards: the shapes of a model, and the work that follows from them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.profilers import cards

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Model types with gated feed-forward layers, whose work the shapes tell."""
_FILE = Path(__file__).with_name("architectures.toml")


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder with grouped-query attention and gated feed-forward layers; norms and biases do not count."""

    family: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocabulary: int
    tied: bool
    max_positions: int

    @property
    def layer_parameters(self) -> int:
        """Weights of all layers' matrices, which each token goes through."""
        attention = self.hidden_size * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def head_parameters(self) -> int:
        """Weights of the output layer, which only tokens whose logits are wanted go through."""
        return self.hidden_size * self.vocabulary

    @property
    def parameters(self) -> int:
        """All weights; tied embeddings count once."""
        return self.layer_parameters + self.head_parameters * (1 if self.tied else 2)

    @property
    def kv_numbers(self) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def attention_flops(self) -> int:
        """Of one pair of a token and a token that it attends to."""
        return 4 * self.layers * self.heads * self.head_dim

    def describe(self) -> dict[str, Any]:
        """The card, as TOML holds it."""
        return asdict(self)

    def config(self) -> Any:
        """A transformers configuration of these shapes."""
        from transformers import AutoConfig

        return AutoConfig.for_model(
            self.family,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate_size,
            vocab_size=self.vocabulary,
            tie_word_embeddings=self.tied,
            max_position_embeddings=self.max_positions,
        )


@cache
def bundled_architectures() -> dict[str, Architecture]:
    """Every card that ships with the kit, by name."""
    content = cards.read_toml(_FILE)
    return {
        name: parse_architecture(card, f"the architecture card '{name}' in {_FILE}") for name, card in content.items()
    }


def read_architecture(path: Path) -> Architecture:
    """A card of one's own."""
    return parse_architecture(cards.read_toml(path), f"the architecture card {path}")


def parse_architecture(content: Mapping[str, Any], place: str) -> Architecture:
    """A card from its fields, checked."""
    names = [one.name for one in fields(Architecture)]
    cards.require_keys(content, names, names, place)
    if content["family"] not in FAMILIES:
        raise SkitError(f"{place}: family must be one of {', '.join(FAMILIES)}, not {content['family']!r}")
    if not isinstance(content["tied"], bool):
        raise SkitError(f"{place}: tied must be true or false")
    sizes = {name: value for name, value in content.items() if name not in ("family", "tied")}
    cards.require_numbers(sizes, place, least=1)
    return Architecture(**{**content, **{name: int(value) for name, value in sizes.items()}})


def architecture_of_config(config: Any) -> Architecture | None:
    """The shapes in a transformers configuration, where its type is one whose work they tell."""
    text = config.get_text_config()
    if text.model_type not in FAMILIES:
        return None
    heads = text.num_attention_heads
    return Architecture(
        family=text.model_type,
        hidden_size=text.hidden_size,
        layers=text.num_hidden_layers,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        intermediate_size=text.intermediate_size,
        vocabulary=text.vocab_size,
        tied=bool(text.tie_word_embeddings),
        max_positions=text.max_position_embeddings,
    )
