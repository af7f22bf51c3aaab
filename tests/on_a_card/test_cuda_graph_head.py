"""The executor `cuda-graph-head` on an emulated card: it drafts what the plain executor of heads drafts."""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from itertools import product

import pytest
from emulated_card import Machine, emulated_cards
from nightly import nightly_except
from tiny_heads import heads_beside, put_beside, trained
from tiny_models import (
    AUTOREGRESSIVE,
    clear_prompts,
    decode,
    make_requests,
    make_runner,
    outputs,
    tiny_llama,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.base import make_executor, name_of
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.runner import Runner

CAPACITY, NEW_TOKENS, SLOTS = 160, 24, 9
SPECS = [
    "eagle:k=3",
    "eagle:k=11",
    "threshold:drafter=head,max_draft=6",
    "eagle2-tree:drafter=head,depth=3,top_k=2,total=6",
    "specedge:drafter=head,depth=3,budget=8,beams=4",
]
KEPT = [("eagle:k=3", 0.0, 3), ("threshold:drafter=head,max_draft=6", 0.7, 1), (SPECS[-1], 0.0, 3)]
"""A chain of fixed and one of varying length, and a tree that goes on behind what was accepted."""


@pytest.fixture
def machine() -> Iterator[Machine]:
    with emulated_cards(1) as machine:
        yield machine


@cache
def requests_() -> list[Request]:
    return make_requests(clear_prompts(tiny_llama(), [3, 9, 75], NEW_TOKENS), NEW_TOKENS)


@cache
def head() -> HeadModel:
    """A head that knows about half of the answers."""
    runner = make_runner(tiny_llama(), 1, CAPACITY)
    answers = decode(AUTOREGRESSIVE, (runner, runner), requests_())
    prompts = [list(request.prompt_ids) for request in requests_()]
    return trained(
        tiny_llama(), prompts, [answers[request.id].output_ids for request in requests_()]
    )


def target_with_head(executor: str | None) -> Runner:
    target = make_runner(tiny_llama().to("cuda"), SLOTS, CAPACITY, "cuda-graph")
    put_beside(target, deepcopy(head()), executor)
    return target


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("spec", "temperature", "batch_size"),
    nightly_except(KEPT[1:], product(SPECS, (0.0, 0.7), (1, 3))),
)
def test_drafts_of_the_plain_executor(spec: str, temperature: float, batch_size: int) -> None:
    method, sampler = (
        parse_method(spec),
        Sampler(temperature, top_p=0.9) if temperature else Sampler(),
    )
    graphs, plain = target_with_head(None), target_with_head("head")
    (drafter,) = heads_beside(method, graphs).values()
    assert name_of(drafter.executor) == "cuda-graph-head"
    on_card, one_by_one = (
        decode(method, (target, target), requests_(), batch_size=batch_size, sampler=sampler)
        for target in (graphs, plain)
    )
    assert outputs(on_card) == outputs(one_by_one)
    rounds, expected = (
        [
            [(round_.drafted, round_.accepted) for round_ in record.rounds]
            for record in records.values()
        ]
        for records in (on_card, one_by_one)
    )
    assert rounds == expected
    assert sum(accepted for request in rounds for _, accepted in request) > 3, (
        "the head is right at times"
    )


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_round_of_trees_waits_once(batch_size: int, machine: Machine) -> None:
    """All levels of a head's trees are one graph, and are verified before the host knows them."""
    method, target = parse_method(SPECS[3]), target_with_head(None)
    requests = requests_()[:batch_size]
    plain = target_with_head("head")
    expected = decode(method, (plain, plain), requests, batch_size=batch_size)
    decode(method, (target, target), requests, batch_size=batch_size)  # captures all shapes
    with machine.counts.during() as counts:
        records = decode(method, (target, target), requests, batch_size=batch_size)
    assert outputs(records) == outputs(expected)
    for name, record in records.items():
        assert [(line.parents, line.path) for line in record.rounds] == [
            (line.parents, line.path) for line in expected[name].rounds
        ]
    rounds = max(len(record.rounds) for record in records.values())
    assert counts.waits <= rounds + batch_size, "one per round, and one for each prompt"


def test_memory_does_not_grow_with_requests(machine: Machine) -> None:
    target, method, after = target_with_head(None), parse_method(SPECS[-1]), []
    for _ in range(3):
        decode(method, (target, target), requests_(), batch_size=2)
        after.append(machine.cards[0].allocated_bytes)
    assert len(set(after[1:])) == 1, "the first time captures"


@pytest.mark.usefixtures("machine")
def test_what_it_cannot_run() -> None:
    with pytest.raises(
        SkitError, match="executor 'cuda-graph-head' runs EAGLE heads on a GPU: give --device cuda"
    ):
        make_executor(head(), 1, 64, None, "cuda-graph-head")
    with pytest.raises(SkitError, match="executor 'cuda-graph-head' runs EAGLE heads on a GPU"):
        make_executor(tiny_llama().to("cuda"), 1, 64, None, "cuda-graph-head")
    turned = deepcopy(head()).to("cuda")
    turned.config.layer.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert name_of(make_executor(turned, 1, 64, None)) == "head"
