"""Architecture cards: the shapes of a model, and the work that follows from them."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import Struct, structs

from specbench_kit.profilers import cards
from specbench_kit.profilers.cards import Size

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Family = Literal["llama", "mistral", "qwen2", "qwen3"]
FAMILIES: tuple[Family, ...] = get_args(Family)
"""Model types with gated feed-forward layers, whose work follows from their shapes."""
_FILE = Path(__file__).with_name("architectures.toml")


class Architecture(Struct, frozen=True, forbid_unknown_fields=True):
    """A decoder with grouped-query attention and gated feed-forward layers; norms and biases are not counted."""

    family: Family
    hidden_size: Size
    layers: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    intermediate_size: Size
    vocabulary: Size
    tied: bool
    max_positions: Size

    @property
    def layer_parameters(self) -> int:
        """The number of weights in the matrices of all layers, with each of which every token is multiplied."""
        attention = self.hidden_size * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def head_parameters(self) -> int:
        """The number of weights in the output layer, which only tokens whose logits are needed go through."""
        return self.hidden_size * self.vocabulary

    @property
    def parameters(self) -> int:
        """The number of all weights; tied embeddings count once."""
        return self.layer_parameters + self.head_parameters * (1 if self.tied else 2)

    @property
    def kv_numbers(self) -> int:
        """The number of numbers in the keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def attention_flops(self) -> int:
        """The operations of attention for one pair of a token and a token that it attends to."""
        return 4 * self.layers * self.heads * self.head_dim

    def describe(self) -> dict[str, object]:
        """Return the fields of the card, ready for TOML."""
        return structs.asdict(self)

    def config(self) -> "PretrainedConfig":
        """Return a transformers configuration of these shapes."""
        from transformers import AutoConfig

        config: PretrainedConfig = AutoConfig.for_model(
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
        return config


@cache
def bundled_architectures() -> dict[str, Architecture]:
    """Return every card that ships with the kit, by name."""
    return {
        name: cards.parse_table(Architecture, card, f"the architecture card '{name}' in {_FILE}")
        for name, card in cards.read_toml(_FILE).items()
    }


def read_architecture(path: Path) -> Architecture:
    """Return the card in a TOML file of the user."""
    return cards.parse_table(Architecture, cards.read_toml(path), f"the architecture card {path}")


def architecture_of_config(config: Any) -> Architecture | None:
    """Return the shapes in a transformers configuration, or None if its model type is not in `FAMILIES`."""
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
