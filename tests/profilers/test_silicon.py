"""Measured kernels: what comes with the kit, and how it is made from the database."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.steps import Step, measured
from specbench_kit.core.errors import SkitError
from specbench_kit.core.extras import missing_module_line
from specbench_kit.decoding.kernel_latency import KernelModel
from specbench_kit.decoding.latency import Row, sums_of
from specbench_kit.profilers.architectures import bundled_architectures
from specbench_kit.profilers.cards import parse_table, read_toml
from specbench_kit.profilers.devices import find_device
from specbench_kit.profilers.roofline import TOLERANCE, Roofline
from specbench_kit.profilers.silicon import (
    FOLDER,
    KernelDatabase,
    MeasuredKernels,
    find_kernels,
    rising,
)
from specbench_kit.profilers.workload import batches, verification

FILES = sorted(FOLDER.glob("*-vllm*.toml"))
DEPLOYED = ("qwen3-32b", "qwen3-14b", "llama3.1-8b", "qwen3-30b-a3b", "qwen3-0.6b", "qwen3-1.7b")
CARDS = ("a100-80", "h100", "l40s", "rtx-pro-6000")
DENSE = sorted({(step.model, step.card) for step in measured() if step.card in CARDS})


def frozen(path: Path) -> MeasuredKernels:
    """Return the kernels in a file, found by what its name says."""
    name, _, together = path.stem.partition("-vllm")
    members = int(together.removeprefix("-tp") or 1)
    card = next(card for card in CARDS if name.endswith(f"-{card}"))
    kernels = find_kernels(name.removesuffix(f"-{card}"), card, "vllm", members)
    assert kernels is not None
    assert (kernels.model, kernels.device, kernels.tensor_parallel) == (
        name.removesuffix(f"-{card}"),
        card,
        members,
    )
    return kernels


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("model", DEPLOYED)
def test_models_and_cards_that_are_often_deployed_come_with_the_kit(model: str, card: str) -> None:
    kernels = find_kernels(model, card, "vllm")
    assert kernels is not None
    assert "Apache-2.0" in kernels.source
    assert find_kernels(model, "rtx4090", "vllm") is None


@pytest.mark.parametrize(("model", "card"), DENSE)
def test_steps_are_those_of_the_database(model: str, card: str) -> None:
    """A plain step is within 1% of the database's from 16 requests on and within 8% below, a prompt within 2%.

    Steps with several new tokens, whose shapes the tables interpolate, are within 2% on average and 10% each.
    """
    kernels = find_kernels(model, card, "vllm")
    assert kernels is not None
    latency, off = KernelModel(kernels.kernels), defaultdict(list)
    for step in measured():
        if (step.model, step.card) == (model, card):
            off[_kind(step)].append(abs(latency.of_sums(step.sums) / step.seconds - 1))
    assert {kind: len(values) for kind, values in off.items()} == {
        "large": 6,
        "small": 8,
        "several": 70,
        "prompt": 2,
    }
    assert max(off["large"]) < 0.01
    assert max(off["small"]) < 0.08
    assert max(off["prompt"]) < 0.02
    assert sum(off["several"]) / 70 < 0.02
    assert max(off["several"]) < 0.1


def _kind(step: Step) -> str:
    if not step.context:
        return "prompt"
    if step.new > 1:
        return "several"
    return "large" if step.requests >= 16 else "small"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_step_is_under_the_physical_limit(path: Path) -> None:
    kernels = frozen(path)
    card = find_device(kernels.device).combined(kernels.tensor_parallel)
    roofline = Roofline(card, bundled_architectures()[kernels.model], kernels.dtype)
    latency = KernelModel(kernels.kernels)
    grid: list[tuple[Row, ...]] = [
        ((new, context),) * requests
        for requests in (1, 8, 32, 128)
        for new in (1, 5, 17)
        for context in (64, 512, 2048, 8192)
    ]
    batched = [configuration.rows for configuration in (*verification(), *batches())]
    ratios = {rows: latency.seconds(rows) / roofline.floor_s(rows) for rows in (*grid, *batched)}
    assert min(ratios.values()) > 1 - TOLERANCE


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_attention_rises_with_context_and_with_requests(path: Path) -> None:
    """At every measured shape and between them; a step rises with its context too, since nothing else depends on it."""
    kernels = parse_table(MeasuredKernels, read_toml(path), path.name).kernels
    seconds = np.array(kernels.decode_s)
    assert (np.diff(seconds, axis=0) >= 0).all()
    assert (np.diff(seconds, axis=1) >= 0).all()
    latency = KernelModel(kernels)
    contexts = [1, 100, 128, 500, 512, 700, 1024, 3000, 16384, 40000]
    for requests in (1, 3, 4, 30, 256, 400):
        for new in (1, 5):
            steps = [latency.of_sums(sums_of([(new, context)] * requests)) for context in contexts]
            assert steps == sorted(steps)


def test_the_closest_rising_table_replaces_disturbed_cells_alone() -> None:
    true = np.outer(range(1, 6), [1.0, 1.1, 1.4, 2.0, 3.5])
    for disturbed in (3.0, 0.3):
        measured_s = true.copy()
        measured_s[2, 2] *= disturbed
        closest = np.array(rising(measured_s.tolist()))
        changed = ~np.isclose(closest, measured_s)
        assert changed.sum() == 1
        assert true[1, 2] <= closest[2, 2] <= true[3, 2]
    assert np.allclose(rising(true.tolist()), true)


def test_without_the_package_the_extra_is_named() -> None:
    assert "pip install 'specbench-kit[silicon]'" in str(
        missing_module_line("aiconfigurator_core.sdk")
    )


class TestWithTheDatabase:
    """The tests of what the package says today, left out where the extra is not installed."""

    @pytest.fixture(autouse=True)
    def database(self) -> None:
        pytest.importorskip("aiconfigurator_core")

    def test_what_comes_with_the_kit_is_what_the_database_says(self) -> None:
        kernels = find_kernels("llama3.1-8b", "a100-80", "vllm")
        assert kernels is not None
        database = KernelDatabase(bundled_architectures()["llama3.1-8b"], "a100-80", "vllm")
        assert database.tables() == kernels.kernels

    def test_a_verification_takes_at_least_the_attention_of_a_plain_step(self) -> None:
        database = KernelDatabase(bundled_architectures()["llama3.1-8b"], "a100-80", "vllm")
        assert database.step(64, 1, 2048).attention_s >= database.step(64, 0, 2048).attention_s
        assert database.step(64, 1, 2048).total_s > database.step(64, 0, 2048).total_s

    @pytest.mark.parametrize(
        ("model", "card"), [("vicuna-33b", "rtx4090"), ("qwen3-32b-4bit", "a100-80")]
    )
    def test_what_was_not_measured_is_one_line(self, model: str, card: str) -> None:
        with pytest.raises(
            SkitError, match=r"no kernels of such a model on .*; leave out --from silicon"
        ):
            KernelDatabase(bundled_architectures()[model], card, "vllm")

    def test_a_batch_is_read_by_its_sums(self) -> None:
        database = KernelDatabase(bundled_architectures()["llama3.1-8b"], "a100-80", "vllm")
        latency = KernelModel(database.tables())
        assert latency.of_sums(sums_of([(5, 512)] * 8)) == pytest.approx(
            database.step(8, 4, 512).total_s, rel=0.03
        )
