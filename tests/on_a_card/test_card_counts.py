"""Bounds on what a round costs a GPU's host, as counts on an emulated card, for every method."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated_card import Machine, emulated_cards
from emulated_card.counts import Counts
from environments import ENVIRONMENT
from method_specs import filled_in, one_of_each_kind, variants
from nightly import nightly_except
from tiny_models import (
    AUTOREGRESSIVE,
    clear_prompts,
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    tiny_llama,
    with_references,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.methods.base import Method, methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.cuda_graph import CudaGraphExecutor
from specbench_kit.models.runner import Runner

NEW_TOKENS, CAPACITY, MOST_RUNS = 12, 160, 8
LAUNCHES, COPIES = 20, 2
OTHERWISE = {
    "autodraft": "autodraft:nodes=8,step=3,max_depth=4",
    "specedge": "specedge:depth=3",
    "server-tree": "server-tree:depth=5",
}
"""Specs of methods whose default options decide by times."""
FIXED = {
    "fixed-k",
    "block-verification",
    "eagle",
    "eagle2-tree",
    "goodput",
    "sequoia",
    "server-tree",
    "specinfer",
    "sglang-ema",
    "sglang-throughput",
    "ucb-specstop",
}
"""Methods of which the host reads nothing before the verification, trees that grow on the card included."""


class CountedRunner(Runner):
    """A runner that counts its forwards."""

    forwards = 0

    def forward(self, *arguments, **options):  # type: ignore[no-untyped-def]
        self.forwards += 1
        return super().forward(*arguments, **options)


@pytest.fixture
def machine() -> Iterator[Machine]:
    with emulated_cards(1) as machine:
        yield machine


def prepared(name: str, folder: Path) -> Method | None:
    """Return a method, with options that tests try if it has no defaults; None if it decodes in no rounds."""
    places = filled_in(folder)
    for spec in (OTHERWISE.get(name, name), *variants(name)):
        try:
            method = parse_method(spec.format(**places)).prepare(ENVIRONMENT)
        except SkitError:
            continue
        return None if method.pipeline is not None else method
    raise AssertionError(f"no options are known with which {name} can be tried")


def counted(
    machine: Machine, method: Method, batch_size: int
) -> tuple[Counts, dict[str, RequestRecord], CountedRunner, Runner]:
    """Decode until a run captures nothing, and return its counts, its records, and draft and target."""
    models = tiny_llama().to("cuda"), disturbed(tiny_llama(), 0.02).to("cuda")
    target, draft = (make_runner(model, batch_size + 1, CAPACITY, "cuda-graph") for model in models)
    draft = CountedRunner(draft.executor)
    requests = make_requests(clear_prompts(tiny_llama(), [4] * batch_size, NEW_TOKENS), NEW_TOKENS)
    if method.needs_reference:
        requests = with_references(
            requests, decode(AUTOREGRESSIVE, (target, draft), requests, batch_size=batch_size)
        )
    for _ in range(MOST_RUNS):
        draft.forwards, before = 0, captures(target, draft)
        with machine.counts.during() as counts:
            records = decode(method, (target, draft), requests, batch_size=batch_size)
        if captures(target, draft) == before:
            plain = decode(AUTOREGRESSIVE, (target, draft), requests, batch_size=batch_size)
            assert outputs(records) == outputs(plain)
            return counts, records, draft, target
    raise AssertionError(f"graphs are captured in every one of {MOST_RUNS} runs")


def captures(*runners: Runner) -> int:
    executors = [runner.executor for runner in runners]
    return sum(
        executor.captures for executor in executors if isinstance(executor, CudaGraphExecutor)
    )


@pytest.mark.parametrize("name", nightly_except(["threshold"], methods.all()))
def test_bounds_of_batches(name: str, machine: Machine, tmp_path: Path) -> None:
    require_bounds(name, 8, machine, tmp_path)


KINDS = {spec.partition(":")[0] for spec in one_of_each_kind()}


@pytest.mark.parametrize("name", nightly_except(sorted(KINDS)[::2], methods.all()))
def test_bounds_of_every_method(name: str, machine: Machine, tmp_path: Path) -> None:
    require_bounds(name, 1, machine, tmp_path)


def require_bounds(name: str, batch_size: int, machine: Machine, tmp_path: Path) -> None:
    method = prepared(name, tmp_path)
    if method is None:
        pytest.skip("a pipeline decodes in steps, not in rounds")
    counts, records, draft, _ = counted(machine, method, batch_size)
    rounds = max(len(record.rounds) for record in records.values())
    drafted = sum(round_.drafted for record in records.values() for round_ in record.rounds)
    # A draft's forward is one token of every chain, or one level of every tree; a prompt is one forward too.
    reads = batch_size if name in FIXED else draft.forwards
    if method.reads_candidates:
        reads += rounds  # the target's candidates come over beside its likeliest tokens
    if method.reads_divergences:
        reads += rounds  # and so do the divergences
    assert counts.waits <= rounds + reads
    assert counts.synchronisations <= rounds
    assert counts.copies_to_card <= COPIES * rounds
    # A policy that learns divergences has the distribution of every draft forward kept and normalised.
    kept = 2 * draft.forwards if method.reads_divergences else 0
    assert counts.launches <= LAUNCHES * rounds + kept
    assert counts.replays <= drafted + rounds + batch_size, (
        "one for a drafted token, a verification or a prompt"
    )
