"""The ends of what derived times may be."""

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.description import corners, describe, restore
from specbench_kit.deployments.loading import bundled, load

STEP = [(5, 512)] * 4


def test_both_devices_are_taken_to_both_ends() -> None:
    deployment = bundled()["wan"].build()
    ends = dict(corners(deployment))
    assert list(ends) == [
        "fast drafter, fast verifier",
        "fast drafter, slow verifier",
        "slow drafter, fast verifier",
        "slow drafter, slow verifier",
    ]
    for role in ("drafter", "verifier"):
        seconds = {
            word: {
                getattr(end, role).latency.seconds(STEP)
                for name, end in ends.items()
                if f"{word} {role}" in name
            }
            for word in ("fast", "slow")
        }
        ((fast_s,), (slow_s,)) = seconds.values()
        assert fast_s < getattr(deployment, role).latency.seconds(STEP) < slow_s - 3e-3
    assert all(end.link == deployment.link for end in ends.values())


def test_published_times_have_no_range() -> None:
    assert list(corners(bundled()["specedge"].build())) == []
    assert [name for name, _ in corners(bundled()["wisp-roofline"].build())] == [
        "fast verifier",
        "slow verifier",
    ]


def test_a_range_is_kept_with_the_deployment() -> None:
    deployment = bundled()["wan"].build()
    assert dict(corners(restore(describe(deployment)))) == dict(corners(deployment))


@pytest.mark.parametrize("name", ["wan", "specpipe"])
def test_the_host_of_a_deployment_is_a_field_of_it(name: str) -> None:
    """Measured kernels and the law take the same fields, which hold at both ends of the range too."""
    without, with_host = (load(name, [f"verifier.host_s={seconds}"]) for seconds in (0.0, 0.004))
    assert without is not None
    assert with_host is not None
    assert without.verifier.range is not None
    assert with_host.verifier.range is not None
    pairs = zip(
        (without.verifier.latency, *without.verifier.range),
        (with_host.verifier.latency, *with_host.verifier.range),
        strict=True,
    )
    for shorter, longer in pairs:
        assert longer.seconds(STEP) - shorter.seconds(STEP) == pytest.approx(0.004)


def test_a_host_belongs_to_derived_times_alone() -> None:
    with pytest.raises(SkitError, match="host_s belong to derived profiles alone"):
        load("wisp", ["verifier.host_s=0.001"])
    with pytest.raises(
        SkitError, match=r"holds measured kernels, which have no coefficients; set verifier\.host_s"
    ):
        load("wan", ["verifier.coefficients.forward_s=0.1"])
