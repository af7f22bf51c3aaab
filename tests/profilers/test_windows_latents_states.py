"""The work of layers that are not those of a plain decoder, worked out by hand on tiny shapes."""

from typing import Any

import pytest
from tomli_w import dumps

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import BatchSums, sums_of
from specbench_kit.profilers.architectures import Architecture, read_architecture
from specbench_kit.profilers.devices import Device
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.software import AchievedSpeed, Software
from specbench_kit.serving.memory import TYPICAL_CONTEXT, tokens_beside

DEVICE = Device("d", "D", 1e9, 8.0, {"float16": 16.0, "float8": 32.0})
IDEAL = Software("s", "S", "", anywhere=AchievedSpeed())
# A layer: attention 4 x 2 x (2 x 2 + 2 x 1) = 48 and feed-forward 3 x 4 x 8 = 96 weights; head 4 x 10 = 40. A pair of
# tokens takes 4 x 2 x 2 = 16 operations in a layer, and a token's KV is 2 x 1 x 2 = 4 numbers.
TINY: dict[str, Any] = {
    "family": "llama", "hidden_size": 4, "layers": 4, "heads": 2, "kv_heads": 1, "head_dim": 2,
    "intermediate_size": 8, "vocabulary": 10, "tied": True, "max_positions": 64,
}  # fmt: skip
MIXTURE: dict[str, Any] = {
    **TINY, "family": "glm4_moe", "experts": 6, "active_experts": 2, "expert_size": 5,
}  # fmt: skip
LINEAR: dict[str, Any] = {
    "linear_layers": 3, "linear_key_heads": 1, "linear_value_heads": 2, "linear_key_dim": 3,
    "linear_value_dim": 2, "linear_convolution": 4,
}  # fmt: skip


def limit(**changes: Any) -> Roofline:
    return Roofline(DEVICE, Architecture(**{**TINY, **changes}), "float16")


def both(roofline: Roofline, sums: BatchSums) -> tuple[float, float]:
    """Return seconds of operations and of traffic, which limit and law agree on."""
    model = roofline.estimate(IDEAL)
    assert model.operations_s(sums) == pytest.approx(roofline.compute_s(sums))
    assert model.traffic_s(sums) == pytest.approx(roofline.traffic_s(sums))
    return roofline.compute_s(sums), roofline.traffic_s(sums)


def test_layers_with_a_window_read_and_multiply_its_tokens_alone() -> None:
    """Three of four layers see 5 tokens; the mean context decides, since a batch is known by its sums."""
    windowed = limit(window=5, windowed_layers=3)
    assert windowed.architecture.parameters == limit().architecture.parameters
    for rows, cached, seen in (
        ([(1, 20)], 20, 5),
        ([(1, 3)], 3, 3),
        ([(1, 20), (1, 2)], 22, 10),  # 11 on average
    ):
        sums = sums_of(rows)
        compute_s, traffic_s = both(windowed, sums)
        new = len(rows)
        weights = 4 * 144 * new + 40 * new
        assert compute_s == pytest.approx(
            (2 * weights + 16 * (cached + new) + 3 * 16 * (seen + new)) / 16
        )
        moved = 2 * (4 * 144 + 40) + 2 * 4 * (cached + new) + 3 * 2 * 4 * (seen + new)
        assert traffic_s == pytest.approx(moved / 8)


def test_of_a_prompt_every_token_attends_to_the_window_alone() -> None:
    """A prompt of 20: 190 pairs in the layer without a window, and 5 for each of its tokens in the others."""
    compute_s, _ = both(limit(window=5, windowed_layers=3), sums_of([(20, 0)]))
    pairs = 16 * (190 + 20) + 3 * 16 * (5 * 20 + 20)
    assert compute_s == pytest.approx((2 * (4 * 144 * 20 + 40) + pairs) / 16)


def test_sparse_attention_reads_what_an_indexer_selects_and_holds_all() -> None:
    """Three layers attend to 5 tokens, chosen by two indexers of 2 heads with keys of 3 numbers."""
    shapes = {
        "selected": 5,
        "sparse_layers": 3,
        "index_layers": 2,
        "index_heads": 2,
        "index_dim": 3,
    }
    sparse = limit(**shapes)
    assert sparse.architecture.dense_parameters == 4 * 144 + 2 * (4 * 2 * 3 + 4 * (3 + 2))
    compute_s, traffic_s = both(sparse, sums_of([(1, 20)]))
    weights = 2 * (sparse.architecture.dense_parameters + 40)
    moved = weights + 2 * (4 + 2 * 3) * 21 + 3 * 2 * 4 * (5 + 1)
    assert traffic_s == pytest.approx(moved / 8)
    assert compute_s == pytest.approx((weights + (16 + 2 * 2 * 2 * 3) * 21 + 3 * 16 * (5 + 1)) / 16)
    assert sparse.held_token_bytes(20) == 2 * (4 * 4 + 2 * 3)


def test_latent_attention_caches_a_latent_and_a_rotary_key_for_all_heads() -> None:
    """Latent of 3, rotary key of 1, values of 2: queries 4 x 2 x 3, down 4 x 4, up 3 x 2 x 4, out 2 x 2 x 4."""
    shapes = {"latent_rank": 3, "rope_dim": 1, "value_dim": 2}
    latent = limit(**shapes)
    assert latent.architecture.dense_parameters == 4 * (24 + 16 + 24 + 16 + 96)
    assert latent.architecture.kv_numbers == 4 * (3 + 1)
    # A head multiplies a query with latent and key, and weights with the latent: 2 x (3 + 1) + 2 x 3 operations.
    assert latent.architecture.attention_flops == 4 * 2 * 14
    both(latent, sums_of([(3, 5)]))
    ranked = limit(**shapes, query_rank=5)  # queries 4 x 5 + 5 x 2 x 3
    assert ranked.architecture.dense_parameters == 4 * (50 + 16 + 24 + 16 + 96)
    spread = Roofline(DEVICE.combined(8), latent.architecture, "float16", 8)
    assert spread.kv_token_bytes == 8 * latent.kv_token_bytes  # every card holds the latents


def test_linear_attention_reads_and_writes_a_state_per_request() -> None:
    """Keys of one head of 3, values of two heads of 2, a convolution over 4 tokens of 3 + 3 + 4 channels."""
    hybrid = limit(**LINEAR)
    shapes = hybrid.architecture
    # In come 10 channels, 4 of the output gate and 2 x 2 for the heads, and 4 go out.
    projections = 4 * (10 + 4 + 4) + 4 * 4 + 10 * 4
    assert shapes.dense_parameters == 48 + 3 * projections + 4 * 96
    assert shapes.kv_numbers == 4  # of the one layer with attention
    assert shapes.state_numbers == 3 * (2 * 3 * 2 + 3 * 10)
    rows = [(1, 20), (3, 7)]
    compute_s, traffic_s = both(hybrid, sums_of(rows))
    states = 3 * (12 + 30) * 4 * 2  # float32, read and written
    moved = 2 * (shapes.dense_parameters + 40) + 2 * 4 * (27 + 4) + 2 * states
    assert traffic_s == pytest.approx(moved / 8)
    pairs = 20 + 3 * 7 + 3 + 4
    operations = 2 * (shapes.dense_parameters + 40) * 4 + 16 * pairs + 3 * 6 * 12 * 4
    assert compute_s == pytest.approx(operations / 16)


def test_a_mixture_may_have_dense_layers_and_a_shared_expert() -> None:
    """One dense layer; in three, a router 4 x 6, a shared expert 3 x 4 x 7, and experts of 3 x 4 x 5."""
    shapes = Architecture(**MIXTURE, dense_layers=1, shared_expert_size=7)
    assert shapes.dense_parameters == 4 * 48 + 96 + 3 * (24 + 84)
    assert shapes.expert_parameters == 3 * 60
    assert shapes.layer_parameters == shapes.dense_parameters + 2 * 180
    assert shapes.parameters == shapes.dense_parameters + 6 * 180 + 40
    both(Roofline(DEVICE, shapes, "float16"), sums_of([(1, 5)]))


def test_gated_attention_has_a_third_projection_of_the_queries_width() -> None:
    gated = limit(gated_attention=True).architecture
    assert gated.dense_parameters == 4 * (48 + 4 * 2 * 2 + 96)


def test_experts_may_be_in_other_bits_than_the_rest() -> None:
    shapes = Architecture(**MIXTURE, expert_bits=4.0)
    roofline = Roofline(DEVICE, shapes, "float16")
    dense, experts = shapes.dense_parameters, 6 * shapes.expert_parameters
    assert roofline.weight_bytes == 2 * (dense + 40) + experts // 2
    assert shapes.layer_bits == pytest.approx((16 * dense + 4 * experts) / (dense + experts))
    assert shapes.with_weight_bits(8.0).layer_bits == 8.0
    assert Architecture(**MIXTURE).layer_bits is None
    assert roofline.per_forward_s == pytest.approx(
        (2 * (dense + 40) + 2 * shapes.expert_parameters / 2) / 8
    )


def test_matrices_are_multiplied_in_low_precision_where_a_device_has_units_for_it() -> None:
    """Twice the peak in float8; attention and output layer stay in the dtype, and other devices do too."""
    sums = sums_of([(3, 5)])
    low, plain = limit(computed_in="float8"), limit()
    saved_s = 2 * 4 * 144 * 3 / 16 / 2
    assert both(low, sums)[0] == pytest.approx(plain.compute_s(sums) - saved_s)
    assert both(limit(computed_in="float4"), sums)[0] == plain.compute_s(sums)
    assert plain.device.dtypes == ("float16",)
    with pytest.raises(SkitError, match="no units for float8; use float16"):
        DEVICE.peak("float8")


def test_what_does_not_grow_with_a_request_is_spread_over_a_typical_one() -> None:
    """Layers with a window hold its tokens, states do not grow; the rest grows by a token's KV."""
    windowed = limit(window=5, windowed_layers=3)
    assert windowed.held_token_bytes(20) == 2 * 4 + 3 * 2 * 4 * 5 / 20
    assert windowed.held_token_bytes(3) == 4 * 2 * 4  # nothing has left the window
    assert limit().held_token_bytes(20) == limit().kv_token_bytes
    free = (1 - 0.1) * 1e9 - windowed.weight_bytes
    assert tokens_beside([windowed], 0.1) == free // windowed.held_token_bytes(TYPICAL_CONTEXT)
    hybrid = limit(**LINEAR)
    states = 3 * (12 + 30) * 4
    assert hybrid.held_token_bytes(20) == pytest.approx(2 * 4 + states / 20)


BAD = {
    "window = 5": "window and windowed_layers go together",
    "window = 5\nwindowed_layers = 5": "and sparse_layers and linear_layers must be at most the 4 layers, not 5",
    "selected = 5": "sparse attention needs selected, sparse_layers, index_layers",
    "latent_rank = 3": "latent attention needs latent_rank, rope_dim and value_dim",
    "linear_layers = 1": "layers with linear attention need all fields that begin with linear_",
    "dense_layers = 1": "belong to a mixture of experts",
    "borrowed_tables = 2": "borrowed_tables must be at most 1",
    "experts = 4": "which need all",
    'computed_in = "int8"': 'computed_in must be "float4" or "float8"',
}


@pytest.mark.parametrize("text", BAD)
def test_shapes_that_contradict_each_other_are_one_line(text: str, tmp_path: Any) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(dumps(TINY) + text)
    with pytest.raises(SkitError, match=BAD[text]):
        read_architecture(path)
