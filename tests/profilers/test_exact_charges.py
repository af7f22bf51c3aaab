"""What the limit of a device charges, and what cross-validation says of nothing."""

from typing import Any

import numpy as np
import pytest

from specbench_kit.decoding.latency import sums_of
from specbench_kit.profilers.architectures import Architecture
from specbench_kit.profilers.devices import Device
from specbench_kit.profilers.fit import Observation, fit
from specbench_kit.profilers.interconnects import Interconnect
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.software import FUSED, AchievedSpeed, Software, find_software
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
    assert ROOFLINE.compute_s(sums_of([(3, 5)])) == pytest.approx((2 * (3 * 288 + 3 * 40) + 32 * (15 + 6)) / 16)
    assert ROOFLINE.compute_s(sums_of([(3, 0)])) == pytest.approx((2 * (3 * 288 + 1 * 40) + 32 * 6) / 16)
    separate = ROOFLINE.compute_s(sums_of([(3, 5)])) + ROOFLINE.compute_s(sums_of([(3, 0)]))
    assert ROOFLINE.compute_s(sums_of([(3, 5), (3, 0)])) == pytest.approx(separate)


def test_traffic_counts_weights_once_and_kv_that_is_read_and_written() -> None:
    assert ROOFLINE.traffic_s(sums_of([(3, 5), (1, 2)])) == pytest.approx((2 * (288 + 40) + 16 * (3 + 5 + 1 + 2)) / 8)


def test_an_estimate_adds_compute_traffic_and_the_gaps_between_kernels() -> None:
    rows = [(3, 5)]
    compute_s, traffic_s = ROOFLINE.compute_s(sums_of(rows)), ROOFLINE.traffic_s(sums_of(rows))
    estimate = ROOFLINE.estimate(find_software(FUSED))
    assert estimate.seconds(rows) - compute_s - traffic_s == pytest.approx(2 * 10 * 2.5e-6)
    prompts_too = [(3, 5), (4, 0), (1, 9)]
    both_s = ROOFLINE.compute_s(sums_of(prompts_too)) + ROOFLINE.traffic_s(sums_of(prompts_too))
    assert estimate.seconds(prompts_too) - both_s == pytest.approx(2 * 10 * 2.5e-6)
    assert ROOFLINE.floor_s(rows) == max(compute_s, traffic_s)


def test_a_software_reaches_its_share_of_a_card_and_adds_its_steps_and_reductions() -> None:
    """Half the peak and a quarter of the bandwidth; 4 reductions of 8 bytes a token, 1.5 times each over 2 bytes/s."""
    software = Software("s", "S", "", cards={"d": AchievedSpeed(0.5, 0.25, 3.0, 0.5)})
    rows, wire = [(3, 5)], Interconnect("w", "W", 2.0, 7.0)
    plain_s = 2 * ROOFLINE.compute_s(sums_of(rows)) + 4 * ROOFLINE.traffic_s(sums_of(rows)) + 3.0 + 2 * 0.5
    assert ROOFLINE.estimate(software).seconds(rows) == pytest.approx(plain_s)
    spread = ROOFLINE.estimate(software, 4, wire).seconds(rows)
    assert spread - plain_s == pytest.approx(4 * (7.0 + 3 * 8 * 1.5 / 2.0))


def test_what_a_device_needs_for_a_token_a_forward_and_its_weights() -> None:
    assert ROOFLINE.weight_bytes == 2 * (288 + 40)
    assert ROOFLINE.per_forward_s == pytest.approx(2 * (288 + 40) / 8)
    assert ROOFLINE.per_token_s == pytest.approx(2 * (288 + 40) / 16)
    assert list(ROOFLINE.bounds("interactions").values()) == pytest.approx([2 * 288 / 16, 32 / 16 / 2, 16 / 8, 656 / 8])
    assert list(ROOFLINE.bounds("context").values()) == pytest.approx([32 / 16, 2 * 288 / 16, 656 / 8])


def test_cross_validation_learns_nothing_from_noise() -> None:
    """A fit that has seen the times would explain some of them; one that has not does worse than their mean."""
    random = np.random.default_rng(0)
    noise = [Observation(configuration, float(random.uniform(1, 2))) for configuration in verification()]
    fitted = fit("interactions", noise).cross_validation
    assert fitted["mean_r2"] < 0
    assert fitted["min_r2"] <= fitted["mean_r2"]
    assert fitted["folds"] == 5
