"""What a comparison says that it could have shown."""

import numpy as np
import pytest
from msgspec.structs import replace
from report_builders import make_row

from benchmarks.calibration import Scene
from specbench_kit.metrics.gate import resolution
from specbench_kit.metrics.result import Comparison
from specbench_kit.metrics.statistics import Array
from specbench_kit.metrics.typical import Typical, limit_of_one
from specbench_kit.metrics.verdicts import NO_DIFFERENCE
from specbench_kit.reports.comparison.wording import power_words
from specbench_kit.reports.writing.formatting import share


def row(logs: Array) -> dict[str, float]:
    typical = Typical.of(logs)
    assert typical is not None
    assert typical.standard_error is not None
    return make_row(
        typical_relative_speed=typical.value,
        typical_relative_speed_error=typical.standard_error,
        typical_relative_speed_limit=limit_of_one(typical.units),
        relative_speed_units=typical.units,
    )


@pytest.mark.nightly  # python -m benchmarks calibration measures it
def test_the_smallest_difference_is_found_in_about_four_of_five_runs() -> None:
    """Two methods on 20 prompts whose times vary by a tenth: what the mean run says, tried on 250 others."""
    rng = np.random.default_rng(2)
    resolutions = [resolution([("b", row(rng.normal(0, 0.1 * 2**0.5, 20)))]) for _ in range(40)]
    smallest = float(np.mean([power.smallest for power in resolutions if power]))
    assert 0.07 < smallest < 0.12
    _, found_share, _ = Scene("log-normal", 2, 20, gain=smallest).rates(250)
    assert 0.7 < found_share < 0.92


def test_more_prompts_are_needed_for_what_lies_closer() -> None:
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 0.1, 20)
    near, far = (resolution([("b", row(noise - noise.mean() + gap))]) for gap in (0.02, 0.04))
    assert near is not None
    assert far is not None
    assert near.needed is not None
    assert far.needed is not None
    assert near.needed > 2 * far.needed > 80
    assert (near.units, near.rival) == (20, "b")


def test_the_fastest_rival_counts_and_those_without_an_error_do_not() -> None:
    rng = np.random.default_rng(4)
    slow, fast = (row(rng.normal(gap, 0.1, 12)) for gap in (-0.5, -0.1))
    power = resolution([("slow", slow), ("fast", fast), ("few", make_row())])
    assert power is not None
    assert power.rival == "fast"
    assert resolution([("few", make_row())]) is None


def test_what_is_equal_is_out_of_reach() -> None:
    equal = row(np.concatenate([np.full(10, 0.1), np.full(10, -0.1)]) + np.linspace(0, 1e-6, 20))
    power = resolution([("b", replace(equal, typical_relative_speed=1.0 + 1e-9))])
    assert power is not None
    assert power.needed is None
    assert 0.05 < power.smallest < 0.2


def test_the_words_name_the_pair_that_was_not_told_apart(comparison: Comparison) -> None:
    """Others were shown to be slower, of which the number of prompts says nothing."""
    verdicts = {label: row.verdict for label, row in comparison.overall.items()}
    open_ones = [label for label, verdict in verdicts.items() if verdict == NO_DIFFERENCE]
    assert "slower" in verdicts.values()
    power = resolution((label, comparison.overall[label]) for label in open_ones)
    assert power is not None
    words = power_words(comparison)
    assert words.startswith(
        f"Between `{comparison.reference}` and `{power.rival}`, which are not told apart, these 12 prompts show "
        f"differences from {share(power.smallest)} on in four of five cases; about {power.needed} would tell the two "
    )
