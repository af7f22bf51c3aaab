"""Architecture cards: the shapes of a model, and the work that follows from them."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, structs, to_builtins

from specbench_kit.core.errors import require
from specbench_kit.core.typed_json import Written, convert
from specbench_kit.profilers import cards
from specbench_kit.profilers.cards import Size

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Family = Literal[
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma3_text",
    "gpt_oss",
    "deepseek_v3",
    "glm4_moe",
    "glm_moe_dsa",
    "minimax_m2",
    "minimax_m3",
    "llama4_text",
    "qwen3_next",
    "qwen3_5_moe_text",
    "qwen3_5_text",
]
FAMILIES: tuple[Family, ...] = get_args(Family)
"""Model types with gated feed-forward layers, whose work follows from their shapes."""
MIXTURES: frozenset[Family] = frozenset(
    {
        "qwen3_moe",
        "gpt_oss",
        "deepseek_v3",
        "glm4_moe",
        "glm_moe_dsa",
        "minimax_m2",
        "minimax_m3",
        "llama4_text",
        "qwen3_next",
        "qwen3_5_moe_text",
    }
)
"""The model types whose feed-forward layers are mixtures of experts."""
BUILT: frozenset[Family] = frozenset({"llama", "mistral", "qwen2", "qwen3", "qwen3_moe"})
"""The model types of which a model with random weights can be built from the shapes alone."""
UNREADABLE: frozenset[Family] = frozenset({"llama4_text", "minimax_m3"})
"""The model types whose configuration does not say all shapes: that of a shared expert, say."""
Bits = Annotated[float, Meta(ge=1, le=32)]
"""Bits per number in memory; scales of quantised blocks count, so that it need not be whole."""
Part = Annotated[int, Meta(ge=0, le=2**31)]
"""A size or number of something that a model need not have."""
LowPrecision = Literal["float8", "float4"]
"""Numbers that only the layers' matrices are multiplied in; attention and output layer are not."""
_FILE = Path(__file__).with_name("architectures.toml")


class Architecture(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A decoder whose work follows from its shapes; norms and biases are not counted.

    Layers have grouped-query attention and a gated feed-forward network of `intermediate_size`, except where the
    following fields say otherwise:

    - Mixtures: all layers but `dense_layers` of them have so many `experts` of the inner size `expert_size`, of which
      a router gives every token `active_experts`, and a shared expert of `shared_expert_size` for every token.
    - Latent attention: `latent_rank` numbers and a rotary key of `rope_dim` numbers are cached per token, for all
      heads together. A query has `head_dim` and `rope_dim` numbers per head, a value `value_dim`; `query_rank` is the
      inner size of the projection of queries, 0 if it has none.
    - Windows: `windowed_layers` of the layers attend to the last `window` tokens alone.
    - Sparse attention: `sparse_layers` of the layers attend to `selected` tokens, which an indexer of `index_heads`
      heads chooses; `index_layers` of them have one of their own, which caches and reads a key of `index_dim` numbers
      of every token.
    - Linear attention: `linear_layers` of the layers have no KV but a state of fixed size per request, which each
      forward reads and writes; its shapes are those of a gated delta rule.
    - `gated_attention` doubles the projection of queries, for a gate on the attention's output.
    - Drafters: `beside_layers` are the weights of matrices beside the layers that every token is multiplied with,
      `borrowed_tables` says how many of the embeddings and the output layer are the target's, so that they are read
      and not held, and one forward drafts `tokens_per_forward` tokens.

    `weight_bits`, `expert_bits` (those of `weight_bits` by default) and `kv_bits` are set if the layers' matrices,
    the experts among them, or the KV are quantised, `table_bits` if embeddings and output layer are. Matrices are
    multiplied in the dtype all the same, or as `computed_in` says on a device that has units for it.
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
    expert_size: Part = 0
    shared_expert_size: Part = 0
    dense_layers: Part = 0
    latent_rank: Part = 0
    rope_dim: Part = 0
    value_dim: Part = 0
    query_rank: Part = 0
    window: Part = 0
    windowed_layers: Part = 0
    selected: Part = 0
    sparse_layers: Part = 0
    index_layers: Part = 0
    index_heads: Part = 0
    index_dim: Part = 0
    linear_layers: Part = 0
    linear_key_heads: Part = 0
    linear_value_heads: Part = 0
    linear_key_dim: Part = 0
    linear_value_dim: Part = 0
    linear_convolution: Part = 0
    gated_attention: bool = False
    beside_layers: Annotated[int, Meta(ge=0, le=2**50)] = 0
    borrowed_tables: Annotated[int, Meta(ge=0, le=2)] = 0
    tokens_per_forward: Annotated[int, Meta(ge=1, le=1024)] = 1
    weight_bits: Bits | None = None
    expert_bits: Bits | None = None
    kv_bits: Bits | None = None
    table_bits: Bits | None = None
    computed_in: LowPrecision | None = None

    def __post_init__(self) -> None:
        mixture = (self.experts, self.active_experts, self.expert_size)
        if (self.family in MIXTURES) != all(mixture) or (any(mixture) and not all(mixture)):
            raise ValueError(
                "experts, active_experts and expert_size belong to the families "
                f"{', '.join(sorted(MIXTURES))}, which need all"
            )
        if self.active_experts > self.experts:
            raise ValueError(
                f"active_experts must be at most the {self.experts} experts, not {self.active_experts}"
            )
        if not self.experts and (self.shared_expert_size or self.dense_layers or self.expert_bits):
            raise ValueError(
                "shared_expert_size, dense_layers and expert_bits belong to a mixture of experts"
            )
        latent = (self.latent_rank, self.rope_dim, self.value_dim)
        if any((*latent, self.query_rank)) and (not all(latent) or self.kv_heads != 1):
            raise ValueError(
                "latent attention needs latent_rank, rope_dim and value_dim, and kv_heads = 1, since "
                "all heads share what is cached"
            )
        if bool(self.window) != bool(self.windowed_layers):
            raise ValueError("window and windowed_layers go together: give both or neither")
        indexed = (self.sparse_layers, self.index_layers, self.index_heads, self.index_dim)
        if any((self.selected, *indexed)) and not all((self.selected, *indexed)):
            raise ValueError(
                "sparse attention needs selected, sparse_layers, index_layers, index_heads and index_dim"
            )
        if self.selected and self.window:
            raise ValueError("selected and window cannot go together: a model has one of them")
        linear = (
            self.linear_layers,
            self.linear_key_heads,
            self.linear_value_heads,
            self.linear_key_dim,
            self.linear_value_dim,
            self.linear_convolution,
        )
        if any(linear) and not all(linear):
            raise ValueError("layers with linear attention need all fields that begin with linear_")
        for parts in (
            ("windowed_layers", "sparse_layers", "linear_layers"),
            ("dense_layers",),
        ):
            number = sum(getattr(self, name) for name in parts)
            if number > self.layers:
                raise ValueError(
                    f"{' and '.join(parts)} must be at most the {self.layers} layers, not {number}"
                )
        if self.borrowed_tables > self._tables:
            raise ValueError("borrowed_tables must be at most 1 where the embeddings are tied")

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
        """The number of weights in the matrices of all layers that no router chooses, and beside the
        layers.
        """
        expert_layers = self._expert_layers
        feed_forward = 3 * self.hidden_size * self.intermediate_size
        routed = self.hidden_size * (self.experts + 3 * self.shared_expert_size)
        return (
            self._attention_layers * self._attention_parameters
            + self.linear_layers * self._linear_parameters
            + self.index_layers * self._index_parameters
            + (self.layers - expert_layers) * feed_forward
            + expert_layers * routed
            + self.beside_layers
        )

    @property
    def expert_parameters(self) -> int:
        """The number of weights in one expert of every layer; 0 without a mixture."""
        return self._expert_layers * 3 * self.hidden_size * self.expert_size

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
    def active_parameters(self) -> int:
        """The number of weights that one token is multiplied with, the output layer included."""
        return self.layer_parameters + self.head_parameters

    @property
    def tables_held(self) -> int:
        """How many of embeddings and output layer are in memory; tied ones are one table."""
        return self._tables - self.borrowed_tables

    @property
    def parameters(self) -> int:
        """The number of all weights; tied embeddings count once, those of a target not at all."""
        layers = self.dense_parameters + self.experts * self.expert_parameters
        return layers + self.head_parameters * self.tables_held

    @property
    def layer_bits(self) -> float | None:
        """The mean bits of a weight of the layers, experts included; None if none are quantised."""
        if self.weight_bits is None and self.expert_bits is None:
            return None
        dense, experts = self.dense_parameters, self.experts * self.expert_parameters
        # 16 bits are those of the dtypes that a part is left in whose bits no card states.
        bits = self.weight_bits or 16
        return (dense * bits + experts * (self.expert_bits or bits)) / (dense + experts)

    @property
    def unusual_parts(self) -> tuple[str, ...]:
        """What the analytic model of step times was not fitted to, in words; empty for plain decoders
        and mixtures in 16 bits.
        """
        parts = {
            "latent attention": self.latent_rank,
            "windows": self.windowed_layers,
            "sparse attention": self.sparse_layers,
            "linear attention": self.linear_layers,
            "quantised weights": self.layer_bits,
        }
        return tuple(name for name, has in parts.items() if has)

    @property
    def kv_numbers(self) -> int:
        """The number of numbers that are cached of one token in layers that attend to all tokens,
        those of indexers included.
        """
        indexed = self.index_layers * self.index_dim
        return self._full_layers * self._kv_numbers_of_layer + indexed

    @property
    def attended(self) -> int:
        """The most tokens that layers with a window or a selection attend to; 0 without such layers."""
        return self.window or self.selected

    @property
    def windowed_kv_numbers(self) -> int:
        """The number of numbers that are cached of one token, in layers with a window or a
        selection.
        """
        return (self.windowed_layers + self.sparse_layers) * self._kv_numbers_of_layer

    @property
    def state_numbers(self) -> int:
        """The number of numbers in the states of one request, those of the convolutions included."""
        recurrent = self.linear_value_heads * self.linear_key_dim * self.linear_value_dim
        convolved = self._convolved * max(0, self.linear_convolution - 1)
        return self.linear_layers * (recurrent + convolved)

    @property
    def attention_flops(self) -> int:
        """The operations of attention for one pair of a token and a token that it attends to, in
        layers that attend to all tokens.

        Latent attention is that of decoding, in which queries are multiplied with what is cached
        (absorbed); prompts that are computed without take fewer.
        """
        indexed = 2 * self.index_layers * self.index_heads * self.index_dim
        return self._full_layers * self._attention_flops_of_layer + indexed

    @property
    def windowed_attention_flops(self) -> int:
        """The operations of attention for one pair of tokens, in layers with a window or a
        selection.
        """
        return (self.windowed_layers + self.sparse_layers) * self._attention_flops_of_layer

    @property
    def state_flops(self) -> int:
        """The operations of one token on the states of all layers with linear attention.

        Three products with the state: what is forgotten, what is written, what is read.
        """
        state = self.linear_value_heads * self.linear_key_dim * self.linear_value_dim
        return 6 * self.linear_layers * state

    @property
    def _expert_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def _attention_layers(self) -> int:
        return self.layers - self.linear_layers

    @property
    def _full_layers(self) -> int:
        return self._attention_layers - self.windowed_layers - self.sparse_layers

    @property
    def _tables(self) -> int:
        return 1 if self.tied else 2

    @property
    def _attention_parameters(self) -> int:
        """The number of weights in the projections of a layer with attention."""
        if self.latent_rank:
            query = self.heads * (self.head_dim + self.rope_dim)
            queries = (
                self.query_rank * (self.hidden_size + query)
                if self.query_rank
                else self.hidden_size * query
            )
            compressed = self.hidden_size * (self.latent_rank + self.rope_dim)
            expanded = self.latent_rank * self.heads * (self.head_dim + self.value_dim)
            return queries + compressed + expanded + self.heads * self.value_dim * self.hidden_size
        queries = self.heads * (3 if self.gated_attention else 2)
        return self.hidden_size * self.head_dim * (queries + 2 * self.kv_heads)

    @property
    def _index_parameters(self) -> int:
        """The number of weights in an indexer: queries, of their projection's inner size if there is
        one, a key, and a weight for each head.
        """
        queries = (self.query_rank or self.hidden_size) * self.index_heads * self.index_dim
        return queries + self.hidden_size * (self.index_dim + self.index_heads)

    @property
    def _convolved(self) -> int:
        """The number of channels that a layer with linear attention convolves: queries, keys and
        values.
        """
        keys = self.linear_key_heads * self.linear_key_dim
        return 2 * keys + self.linear_value_heads * self.linear_value_dim

    @property
    def _linear_parameters(self) -> int:
        """The number of weights in the projections of a layer with linear attention.

        Queries, keys, values and an output gate come in, two numbers per head say how much is
        forgotten and written, and values go out.
        """
        values = self.linear_value_heads * self.linear_value_dim
        inputs = self._convolved + values + 2 * self.linear_value_heads
        return self.hidden_size * (inputs + values) + self._convolved * self.linear_convolution

    @property
    def _kv_numbers_of_layer(self) -> int:
        return (
            self.latent_rank + self.rope_dim
            if self.latent_rank
            else 2 * self.kv_heads * self.head_dim
        )

    @property
    def _attention_flops_of_layer(self) -> int:
        if self.latent_rank:
            return 2 * self.heads * (2 * self.latent_rank + self.rope_dim)
        return 4 * self.heads * self.head_dim

    def with_weight_bits(
        self,
        bits: float | None,
        computed_in: LowPrecision | None = None,
        table_bits: float | None = None,
    ) -> "Architecture":
        """Return the shapes with all matrices of the layers in so many bits, and embeddings and output
        layer in as many of their own, if they are quantised.
        """
        changed: Architecture = structs.replace(
            self,
            weight_bits=bits,
            expert_bits=None,
            computed_in=computed_in,
            table_bits=table_bits,
        )
        return changed

    def describe(self) -> Written:
        """Return the fields of the card that are not at their defaults, ready for TOML."""
        fields: Written = to_builtins(self)
        return fields

    def config(self) -> "PretrainedConfig":
        """Return a transformers configuration of these shapes; raise SkitError if random weights of
        them cannot be made.
        """
        kind = "draft head" if self.beside_layers else f"model of the type {self.family}"
        kind += "" if self.layer_bits is None else f" in {self.layer_bits:.4g} bits"
        require(
            self.family in BUILT and not self.beside_layers and self.layer_bits is None,
            f"no {kind} is made with random weights: derive its profile for a --gpu that this machine "
            "does not have, or name a folder with its weights",
        )
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


def read_named_architecture(path: Path) -> tuple[str, Architecture]:
    """Return the card in a TOML file of the user, with its name."""
    name, content = cards.read_card(path)
    return name, cards.parse_table(Architecture, content, f"the architecture card {path}")


def read_architecture(path: Path) -> Architecture:
    """Return the card in a TOML file of the user."""
    return read_named_architecture(path)[1]


def architecture_of_config(config: Any) -> Architecture | None:
    """Return the shapes in a transformers configuration, or None if its model type is not in
    `FAMILIES`.
    """
    text = config.get_text_config()
    if text.model_type not in FAMILIES or text.model_type in UNREADABLE:
        return None
    return convert(
        Architecture,
        {
            "family": text.model_type,
            "tied": bool(text.tie_word_embeddings),
            # These model types gate the output of their attention, and no field says so.
            "gated_attention": "linear_attention" in _layer_kinds(text),
            **_attention_of(text),
            **_feed_forward_of(text),
            **_linear_of(text),
        },
    )


def _layer_kinds(text: Any) -> list[str]:
    """Return the kind of attention of every layer; none where the configuration names no kinds."""
    return list(getattr(text, "layer_types", None) or [])


def _first(text: Any, *names: str) -> int:
    """Return the first of these attributes that is set, else 0."""
    return next((value for name in names if (value := getattr(text, name, None))), 0)


def _attention_of(text: Any) -> dict[str, int]:
    heads, latent = text.num_attention_heads, _first(text, "kv_lora_rank")
    kinds = _layer_kinds(text)
    windowed = kinds.count("sliding_attention")
    shapes = {
        "hidden_size": text.hidden_size,
        "layers": text.num_hidden_layers,
        "heads": heads,
        "kv_heads": 1 if latent else _first(text, "num_key_value_heads") or heads,
        "head_dim": _first(text, "qk_nope_head_dim", "head_dim") or text.hidden_size // heads,
        "vocabulary": text.vocab_size,
        "max_positions": text.max_position_embeddings,
        "window": _first(text, "sliding_window") if windowed else 0,
        "windowed_layers": windowed,
    }
    if selected := _first(text, "index_topk"):
        indexers = list(getattr(text, "indexer_types", None) or [])
        shapes |= {
            "selected": selected,
            "sparse_layers": text.num_hidden_layers,
            "index_layers": indexers.count("full") or text.num_hidden_layers,
            "index_heads": text.index_n_heads,
            "index_dim": text.index_head_dim,
        }
    if latent:
        shapes |= {
            "latent_rank": latent,
            "rope_dim": text.qk_rope_head_dim,
            "value_dim": text.v_head_dim,
            "query_rank": _first(text, "q_lora_rank"),
        }
    return shapes


def _feed_forward_of(text: Any) -> dict[str, int]:
    experts = _first(text, "num_experts", "n_routed_experts", "num_local_experts")
    size = _first(text, "moe_intermediate_size", "intermediate_size") if experts else 0
    kinds = list(getattr(text, "mlp_layer_types", None) or [])
    dense = kinds.count("dense") if kinds else _first(text, "first_k_dense_replace")
    shared = _first(text, "n_shared_experts") * size
    return {
        "intermediate_size": _first(text, "intermediate_size") or size,
        "experts": experts,
        "active_experts": _first(text, "num_experts_per_tok") if experts else 0,
        "expert_size": size,
        "shared_expert_size": (shared or _first(text, "shared_expert_intermediate_size"))
        if experts
        else 0,
        "dense_layers": dense if experts else 0,
    }


def _linear_of(text: Any) -> dict[str, int]:
    kinds = _layer_kinds(text)
    if "linear_attention" not in kinds:
        return {}
    return {
        "linear_layers": kinds.count("linear_attention"),
        "linear_key_heads": text.linear_num_key_heads,
        "linear_value_heads": text.linear_num_value_heads,
        "linear_key_dim": text.linear_key_head_dim,
        "linear_value_dim": text.linear_value_head_dim,
        "linear_convolution": text.linear_conv_kernel_dim,
    }
