"""What the limit of a device charges, and what cross-validation says of nothing."""

from math import hypot
from typing import Any

import numpy as np
import pytest

from specbench_kit.decoding.latency import Row, sums_of
from specbench_kit.profilers.architectures import Architecture
from specbench_kit.profilers.devices import Device, Interconnect
from specbench_kit.profilers.fit import Observation, fit
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.software import AchievedSpeed, Software
from specbench_kit.profilers.workload import verification

# 2 layers: attention 4 x 2 x (2 x 2 + 2 x 1) = 48 and 3 x 4 x 8 = 96 weights each, 288 in all; head 4 x 10 = 40.
# A pair of tokens takes 4 x 2 x 2 x 2 = 32 operations; a token's KV is 2 x 2 x 1 x 2 = 8 numbers of 2 bytes.
TINY: dict[str, Any] = {
    "family": "llama", "hidden_size": 4, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 2,
    "intermediate_size": 8, "vocabulary": 10, "tied": True, "max_positions": 64,
}  # fmt: skip
ROOFLINE = Roofline(Device("d", "D", 1e3, 8.0, {"float16": 16.0}), Architecture(**TINY), "float16")


def test_compute_counts_weights_wanted_logits_and_pairs() -> None:
    # 3 new after 5: 3 x 288 + 3 x 40 weights, 3 x 5 + 6 pairs. A prompt of 3: one row of logits, 6 pairs.
    assert ROOFLINE.compute_s(sums_of([(3, 5)])) == pytest.approx(
        (2 * (3 * 288 + 3 * 40) + 32 * (15 + 6)) / 16
    )
    assert ROOFLINE.compute_s(sums_of([(3, 0)])) == pytest.approx(
        (2 * (3 * 288 + 1 * 40) + 32 * 6) / 16
    )
    separate = ROOFLINE.compute_s(sums_of([(3, 5)])) + ROOFLINE.compute_s(sums_of([(3, 0)]))
    assert ROOFLINE.compute_s(sums_of([(3, 5), (3, 0)])) == pytest.approx(separate)


def test_traffic_counts_weights_once_and_kv_that_is_read_and_written() -> None:
    assert ROOFLINE.traffic_s(sums_of([(3, 5), (1, 2)])) == pytest.approx(
        (2 * (288 + 40) + 16 * (3 + 5 + 1 + 2)) / 8
    )


@pytest.mark.parametrize("rows", [[(3, 5)], [(3, 5), (4, 0), (1, 9)]])
def test_an_estimate_rounds_the_corner_of_compute_and_traffic(rows: list[Row]) -> None:
    software = Software("s", "S", "", cards={"d": AchievedSpeed(corner=2.0)})
    compute_s, traffic_s = ROOFLINE.compute_s(sums_of(rows)), ROOFLINE.traffic_s(sums_of(rows))
    assert ROOFLINE.estimate(software).seconds(rows) == pytest.approx(hypot(compute_s, traffic_s))
    assert ROOFLINE.floor_s(rows) == max(compute_s, traffic_s)


def test_a_software_reaches_its_share_of_a_card_and_adds_its_steps_and_reductions() -> None:
    """Half the peak and a quarter of the bandwidth; 4 reductions of 8 bytes a token, 1.5 times each over 2 bytes/s."""
    speed = AchievedSpeed(0.5, 0.25, corner=1.0, step_s=3.0, layer_s=0.5, wide_layer_s=0.25)
    software = Software("s", "S", "", cards={"d": speed})
    rows, wire = [(3, 5)], Interconnect("w", "W", 2.0, 7.0, 1.0, 14.0)
    plain_s = (
        2 * ROOFLINE.compute_s(sums_of(rows))
        + 4 * ROOFLINE.traffic_s(sums_of(rows))
        + 3.0
        + 2 * 0.75
    )
    assert ROOFLINE.estimate(software).seconds(rows) == pytest.approx(plain_s)
    spread = ROOFLINE.estimate(software, 4, wire).seconds(rows)
    assert spread - plain_s == pytest.approx(4 * (7.0 + 3 * 8 * 1.5 / 2.0))
    slow = ROOFLINE.estimate(software, 4, wire.slow).seconds(rows)
    assert slow - plain_s == pytest.approx(2 * (spread - plain_s))


def test_a_mixture_reads_the_experts_that_its_tokens_hit() -> None:
    """3 of 4 experts per token: 3 tokens leave an expert out once in 64, and a token alone reads 3 quarters of them."""
    shapes = Architecture(
        **{**TINY, "family": "qwen3_moe"}, experts=4, active_experts=3, expert_size=5
    )
    roofline = Roofline(ROOFLINE.device, shapes, "float16")
    expert_parameters = 2 * 3 * 4 * 5
    assert (shapes.expert_parameters, shapes.dense_parameters) == (
        expert_parameters,
        2 * (48 + 4 * 4),
    )
    assert shapes.layer_parameters == shapes.dense_parameters + 3 * expert_parameters
    assert shapes.parameters == shapes.dense_parameters + 4 * expert_parameters + 40
    model = roofline.estimate(Software("s", "S", "", anywhere=AchievedSpeed()))
    dense_bytes, expert_bytes = 2 * (shapes.dense_parameters + 40), 2 * 4 * expert_parameters
    for tokens, share in ((1, 3 / 4), (3, 63 / 64)):
        traffic = dense_bytes + share * expert_bytes + 16 * (tokens + 5)
        assert model.traffic_s(sums_of([(tokens, 5)])) == pytest.approx(traffic / 8)
    assert roofline.per_forward_s == pytest.approx((dense_bytes + 3 / 4 * expert_bytes) / 8)


def test_quantised_weights_and_keys_are_read_in_fewer_bytes_and_computed_alike() -> None:
    quantised = Roofline(
        ROOFLINE.device, Architecture(**TINY, weight_bits=4.0, kv_bits=8.0), "float16"
    )
    sums = sums_of([(3, 5)])
    assert quantised.compute_s(sums) == ROOFLINE.compute_s(sums)
    assert quantised.traffic_s(sums) == pytest.approx((288 / 2 + 2 * 40 + 8 * (3 + 5)) / 8)
    assert quantised.weight_bytes == 288 // 2 + 2 * 40


def test_what_a_device_needs_for_a_token_a_forward_and_its_weights() -> None:
    assert ROOFLINE.weight_bytes == 2 * (288 + 40)
    assert ROOFLINE.per_forward_s == pytest.approx(2 * (288 + 40) / 8)
    assert ROOFLINE.per_token_s == pytest.approx(2 * (288 + 40) / 16)
    assert list(ROOFLINE.bounds("interactions").values()) == pytest.approx(
        [2 * 288 / 16, 32 / 16 / 2, 16 / 8, 656 / 8]
    )
    assert list(ROOFLINE.bounds("context").values()) == pytest.approx(
        [32 / 16, 2 * 288 / 16, 656 / 8]
    )


def test_cross_validation_learns_nothing_from_noise() -> None:
    """A fit that has seen the times would explain some of them; one that has not does worse than their mean."""
    random = np.random.default_rng(0)
    noise = [
        Observation(configuration, float(random.uniform(1, 2))) for configuration in verification()
    ]
    fitted = fit("interactions", noise).cross_validation
    assert fitted.mean_r2 is not None
    assert fitted.min_r2 is not None
    assert fitted.min_r2 <= fitted.mean_r2 < 0
    assert fitted.folds == 5
