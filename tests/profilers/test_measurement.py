"""Timed forwards of a tiny real model."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import tiny_llama
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.models.catalogue import ModelSource
from specbench_kit.models.executors.base import Executor, make_executor
from specbench_kit.models.executors.padded import Computed, ForwardInput
from specbench_kit.models.pair import LoadedModel
from specbench_kit.profilers.measured_run import observe
from specbench_kit.profilers.measurement import (
    ENOUGH_S,
    REPEATS,
    RUNS,
    Samples,
    TimingRig,
    _pilot,
    choose_factor,
    measure,
    planned_s,
)
from specbench_kit.profilers.settings import ProfileSettings
from specbench_kit.profilers.workload import Configuration, verification

PLAN = [
    Configuration("short", "train", "memory-bound", ((2, 20), (3, 10))),
    Configuration("cold", "train", "compute-bound", ((40, 0),)),
    Configuration("wide", "test", "mixed", ((80, 0), (1, 30))),
]
FOREVER_S = 1e9


@pytest.fixture
def rig() -> Iterator[TimingRig]:
    clock = MeasuringClock(torch.device("cpu"))
    loaded = LoadedModel(tiny_llama(), ModelSource("", "tiny", local_only=True))
    with clock.running():
        yield TimingRig(loaded, clock, seed=0)


@pytest.mark.parametrize(("device", "counted"), [("cpu", [ENOUGH_S]), ("cuda", [2 * ENOUGH_S])])
def test_the_first_forward_on_a_gpu_is_not_counted(
    device: str, counted: list[float], rig: TimingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes: on an H100 a first forward took .2 s, and the next of its shape .03 s."""
    seconds = iter([ENOUGH_S, 2 * ENOUGH_S, 3 * ENOUGH_S])
    rig.make_room(PLAN)
    monkeypatch.setattr(rig._runner.executor, "device", torch.device(device))
    monkeypatch.setattr(rig, "_forward", lambda _: next(seconds))
    monkeypatch.setattr(
        rig, "_prefilled", lambda configuration, _: nullcontext(range(len(configuration.rows)))
    )
    assert rig.time(PLAN[0], run=0) == counted


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    return Samples.open(tmp_path / "samples.csv")


def nothing(step: str, done: int, planned: int) -> None:
    """No progress bar."""


def test_every_configuration_is_timed_in_every_run(rig: TimingRig, samples: Samples) -> None:
    calls: list[tuple[str, int, int]] = []
    gaps = measure(rig, PLAN, samples, FOREVER_S, "timing", lambda *call: calls.append(call))
    assert (gaps.skipped, gaps.cut_off) == ([], 0)
    assert calls[-1] == ("timing", 9, 9)
    assert set(samples.seconds) == {
        (configuration.name, run) for configuration in PLAN for run in range(RUNS)
    }
    assert all(value > 0 for seconds in samples.seconds.values() for value in seconds)
    observations = observe(PLAN, samples)
    assert [observation.configuration.name for observation in observations] == [
        "short",
        "cold",
        "wide",
    ]
    assert all(observation.variation is not None for observation in observations)


class Watch:
    """Makes real executors, keeps what each forward saw, and raises `error` at more than `most` tokens at once."""

    def __init__(self, most: int = 10**9, error: Exception | None = None) -> None:
        self.most, self.error = most, error or torch.OutOfMemoryError("CUDA out of memory")
        self.lengths: list[tuple[int, int]] = []
        self.keys: Tensor | None = None

    def make(self, *given: Any) -> Executor:
        """Return an executor as `make_executor` does, with its forwards watched."""
        executor: Any = make_executor(*given)
        compute = executor.compute

        def watched(batch: ForwardInput) -> Computed:
            if batch.tokens.numel() > self.most:
                raise self.error
            computed = compute(batch)
            self.lengths.append((batch.kv.width, batch.kv.length))
            self.keys = batch.kv.read(0, batch.tokens.device)[0].clone()
            return computed

        executor.compute = watched
        return executor


def test_the_cached_tokens_kv_is_really_there(rig: TimingRig) -> None:
    watching = Watch()
    rig.make_executor = watching.make
    rig.make_room(PLAN)
    seconds = rig.time(PLAN[0], run=0)
    assert watching.lengths[:2] == [(20, 20), (10, 10)]
    assert set(watching.lengths[2:]) == {(3, 23)}
    assert len(watching.lengths) == 2 + 1 + len(seconds)
    assert watching.keys is not None
    assert watching.keys[0, :, :22].abs().amax(dim=(0, 2)).min() > 0
    first = watching.keys.clone()
    rig.time(PLAN[0], run=1)
    assert not torch.equal(watching.keys, first)


def test_what_does_not_fit_the_memory_is_skipped_and_named(
    rig: TimingRig, samples: Samples
) -> None:
    rig.make_executor = Watch(most=64).make
    gaps = measure(rig, PLAN, samples, FOREVER_S, "timing", nothing)
    assert gaps.skipped == ["wide"]
    assert {name for name, _ in samples.seconds} == {"short", "cold"}
    assert [observation.configuration.name for observation in observe(PLAN, samples)] == [
        "short",
        "cold",
    ]


def test_a_cpu_without_memory_is_told_from_another_error(rig: TimingRig, samples: Samples) -> None:
    rig.make_executor = Watch(
        64, RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")
    ).make
    assert measure(rig, PLAN, samples, FOREVER_S, "timing", nothing).skipped == ["wide"]
    rig.make_executor = Watch(64, RuntimeError("shapes differ")).make
    with pytest.raises(RuntimeError, match="shapes differ"):
        measure(rig, PLAN, samples, FOREVER_S, "timing", nothing)


def test_the_budget_cuts_off(rig: TimingRig, samples: Samples) -> None:
    gaps = measure(rig, PLAN, samples, 0.0, "timing", nothing)
    assert gaps.cut_off == 9
    assert not samples.seconds


def test_finished_timings_are_not_made_again(rig: TimingRig, samples: Samples) -> None:
    measure(rig, PLAN, samples, FOREVER_S, "timing", nothing)
    again = Samples.open(samples.path)
    assert {
        key: pytest.approx(value, abs=1e-9) for key, value in samples.seconds.items()
    } == again.seconds
    text = samples.path.read_text()
    measure(rig, PLAN, again, FOREVER_S, "timing", nothing)
    assert samples.path.read_text() == text


def test_a_timing_that_was_cut_short_is_dropped(samples: Samples) -> None:
    samples.add(PLAN[0], 0, [0.001, 0.002])
    with samples.path.open("a") as file:
        file.write("cold,train,comp")
    again = Samples.open(samples.path)
    assert again.seconds == {("short", 0): [0.001, 0.002]}
    again.add(PLAN[1], 0, [0.003])
    assert Samples.open(samples.path).seconds == again.seconds
    samples.path.write_text("header\nshort,train,mixed,1/2,zero,0,1\n")
    with pytest.raises(SkitError, match=r"samples.csv:2: not a timing"):
        Samples.open(samples.path)


def test_lengths_shrink_to_the_context(rig: TimingRig) -> None:
    factor = choose_factor(rig, verification(), budget_s=FOREVER_S)
    assert factor == 1 / 8
    assert (
        max(configuration.scaled(factor).longest for configuration in verification())
        <= rig.loaded.context
    )


def test_lengths_shrink_to_the_budget(rig: TimingRig) -> None:
    """The smallest factor is the last resort, as long as a part of the workload is enough for a fit."""
    whole_s = planned_s(
        [workload.scaled(1 / 32) for workload in verification()], _pilot(rig, FOREVER_S)
    )
    assert choose_factor(rig, verification(), budget_s=whole_s) == 1 / 32
    with pytest.raises(SkitError, match=r"the budget ends before .* give a --budget at least"):
        choose_factor(rig, verification(), budget_s=1e-6, ends_there=True)
    assert choose_factor(rig, verification(), budget_s=1e-6) == 1 / 32


def test_the_plan_counts_prompts_and_repeats() -> None:
    from specbench_kit.decoding.latency import InteractionModel

    slow = InteractionModel(a_s=1.0, b_compute_s=0.0, b_read_s=0.0, c_s=0.0)
    cold, warm = PLAN[1], PLAN[0]
    assert planned_s([cold], slow) == 40
    assert planned_s([warm], slow) == 30 + 5
    quick = InteractionModel(a_s=1e-3, b_compute_s=0.0, b_read_s=0.0, c_s=0.0)
    assert planned_s([cold], quick) == pytest.approx(0.04 * (1 + 6))
    assert planned_s([warm], quick) == pytest.approx(0.03 + 0.005 * (1 + REPEATS))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"budget_s": 0}, "--budget must be a number of seconds above 0"),
        ({"seed": -1}, "--seed must not be negative"),
        ({"runs": 0}, "--runs must be at least 1"),
        ({"name": "a/b"}, "cannot be a file's name"),
        ({"gpu": "a100", "device": "cpu"}, "--gpu and --device both say where to run"),
        ({"save_to": Path("profile.txt")}, "--save-to must name a .toml file"),
    ],
)
def test_bad_settings_are_one_line(options: dict[str, object], problem: str) -> None:
    with pytest.raises(SkitError, match=problem):
        ProfileSettings(**options)  # type: ignore[arg-type]
