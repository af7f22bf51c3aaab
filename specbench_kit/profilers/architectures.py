"""Architecture cards: the shapes of a model, and the work that follows from them."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, structs

from specbench_kit.core.errors import require
from specbench_kit.profilers import cards
from specbench_kit.profilers.cards import Size

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Family = Literal["llama", "mistral", "qwen2", "qwen3", "qwen3_moe"]
FAMILIES: tuple[Family, ...] = get_args(Family)
"""Model types with gated feed-forward layers, whose work follows from their shapes."""
MIXTURE: Family = "qwen3_moe"
"""The model type whose feed-forward layers are mixtures of experts."""
Bits = Annotated[float, Meta(ge=1, le=32)]
"""Bits per number in memory; scales of quantised blocks count, so that it need not be whole."""
_FILE = Path(__file__).with_name("architectures.toml")


class Architecture(Struct, frozen=True, forbid_unknown_fields=True):
    """A decoder with grouped-query attention and gated feed-forward layers; norms and biases are
    not counted.

    In a mixture, each layer has so many `experts` of the inner size `expert_size`, of which a router gives every token
    `active_experts`. `weight_bits` and `kv_bits` are set if the layers' matrices or the KV are quantised; they are
    computed in the dtype all the same.
    """

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
    experts: Annotated[int, Meta(ge=0, le=2**16)] = 0
    active_experts: Annotated[int, Meta(ge=0, le=2**16)] = 0
    expert_size: Annotated[int, Meta(ge=0, le=2**31)] = 0
    weight_bits: Bits | None = None
    kv_bits: Bits | None = None

    def __post_init__(self) -> None:
        mixture = (self.experts, self.active_experts, self.expert_size)
        if (self.family == MIXTURE) != all(mixture) or (any(mixture) and not all(mixture)):
            raise ValueError(
                f"experts, active_experts and expert_size belong to the family '{MIXTURE}', which needs all"
            )
        if self.active_experts > self.experts:
            raise ValueError(
                f"active_experts must be at most the {self.experts} experts, not {self.active_experts}"
            )

    def require_shared_experts(self, cards: int, model: str) -> None:
        """Raise SkitError unless each of so many cards can have as many experts of the model as any
        other.
        """
        require(
            self.experts % cards == 0 < self.experts,
            f"--expert-parallel: {model} has {self.experts or 'no'} experts, which {cards} cards cannot share evenly; "
            "leave it out",
        )

    @property
    def dense_parameters(self) -> int:
        """The number of weights in the matrices of all layers that no router chooses."""
        attention = self.hidden_size * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        feed_forward = (
            self.hidden_size * self.experts
            if self.experts
            else 3 * self.hidden_size * self.intermediate_size
        )
        return self.layers * (attention + feed_forward)

    @property
    def expert_parameters(self) -> int:
        """The number of weights in one expert of every layer; 0 without a mixture."""
        return self.layers * 3 * self.hidden_size * self.expert_size

    @property
    def layer_parameters(self) -> int:
        """The number of weights in the matrices of all layers with which every token is
        multiplied.
        """
        return self.dense_parameters + self.active_experts * self.expert_parameters

    @property
    def head_parameters(self) -> int:
        """The number of weights in the output layer, which only tokens whose logits are needed go
        through.
        """
        return self.hidden_size * self.vocabulary

    @property
    def parameters(self) -> int:
        """The number of all weights; tied embeddings count once."""
        layers = self.dense_parameters + self.experts * self.expert_parameters
        return layers + self.head_parameters * (1 if self.tied else 2)

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
        return {name: value for name, value in structs.asdict(self).items() if value is not None}

    def config(self) -> "PretrainedConfig":
        """Return a transformers configuration of these shapes."""
        from transformers import AutoConfig

        mixture = {
            "num_experts": self.experts,
            "num_experts_per_tok": self.active_experts,
            "moe_intermediate_size": self.expert_size,
        }
        config: PretrainedConfig = AutoConfig.for_model(
            self.family,
            **(mixture if self.experts else {}),
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
    """Return the shapes in a transformers configuration, or None if its model type is not in
    `FAMILIES`.
    """
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
        experts=getattr(text, "num_experts", 0),
        active_experts=getattr(text, "num_experts_per_tok", 0),
        expert_size=getattr(text, "moe_intermediate_size", 0),
    )
