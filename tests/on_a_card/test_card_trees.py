"""Trees that grow on an emulated card by a rule: the trees of level-by-level growth, and one wait per round."""

from collections.abc import Iterator
from typing import Any

import pytest
from emulated_card import Machine, emulated_cards
from tiny_models import (
    AUTOREGRESSIVE,
    clear_prompts,
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    tiny_llama,
)

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.runner import Runner

CAPACITY, NEW_TOKENS, SLOTS = 160, 24, 9
EAGLE2 = "eagle2-tree:depth=3,top_k=4,total=12"


@pytest.fixture
def machine() -> Iterator[Machine]:
    with emulated_cards(1) as machine:
        yield machine


@pytest.fixture(scope="module")
def requests_() -> list[Request]:
    return make_requests(clear_prompts(tiny_llama(), [3, 9, 70], NEW_TOKENS), NEW_TOKENS)


def runners(*, ahead: bool, capacity: int = CAPACITY) -> tuple[Runner, Runner]:
    """A target and a draft model on the card; with `ahead` trees of the draft grow there."""
    models: list[Any] = [tiny_llama().to("cuda"), disturbed(tiny_llama(), 0.02).to("cuda")]
    target, draft = (make_runner(model, SLOTS, capacity, "cuda-graph") for model in models)
    draft.grows_trees = ahead
    return target, draft


def rounds(records: dict[str, RequestRecord]) -> dict[str, list[object]]:
    """What was drafted, verified and accepted in every round, by request."""
    return {
        name: [
            (line.drafted, line.submitted, line.accepted, line.parents, line.path, line.expected)
            for line in record.rounds
        ]
        for name, record in records.items()
    }


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("spec", [EAGLE2])
def test_trees_of_growth_level_by_level(
    spec: str, temperature: float, batch_size: int, requests_: list[Request]
) -> None:
    method, options = (
        parse_method(spec),
        {"sampler": Sampler(temperature), "batch_size": batch_size},
    )
    held = runners(ahead=True)
    on_card = decode(method, held, requests_, **options)  # type: ignore[arg-type]
    by_level = decode(method, runners(ahead=False), requests_, **options)  # type: ignore[arg-type]
    assert outputs(on_card) == outputs(by_level)
    assert rounds(on_card) == rounds(by_level)


@pytest.mark.parametrize("spec", [EAGLE2])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_round_waits_once(spec: str, batch_size: int, machine: Machine) -> None:
    method = parse_method(spec)
    prompts = make_requests(clear_prompts(tiny_llama(), [4] * batch_size, NEW_TOKENS), NEW_TOKENS)
    for ahead in (True, False):
        held = runners(ahead=ahead)
        plain = decode(AUTOREGRESSIVE, held, prompts, batch_size=batch_size)
        decode(method, held, prompts, batch_size=batch_size)
        with machine.counts.during() as counts:
            records = decode(method, held, prompts, batch_size=batch_size)
        number = max(len(record.rounds) for record in records.values())
        print(
            ahead,
            number,
            counts.waits / number,
            counts.copies_to_card / number,
            counts.launches / number,
            counts.replays / number,
            counts.synchronisations,
        )
        print(counts.places("wait"))
        assert outputs(records) == outputs(plain)
