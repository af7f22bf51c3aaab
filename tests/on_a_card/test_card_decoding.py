"""Methods and drafters on an emulated card: the outputs of the host, whatever the batch and the temperature."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_card import Machine, emulated_cards
from environments import ENVIRONMENT
from method_specs import filled_in, one_of_each_kind, specs
from nightly import nightly_except
from tiny_heads import put_beside, untrained
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

from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.runner import Runner

Runners = tuple[Runner, Runner]
CAPACITY, NEW_TOKENS = 160, 12
SAMPLED = Sampler(0.7, top_p=0.9)
KINDS = one_of_each_kind()
DRAFTERS = ["model", "head", "suffix", "first-of.first=prompt-lookup+second=head"]


def runners(device: str) -> Runners:
    models: list[Any] = [tiny_llama(), disturbed(tiny_llama(), 0.02)]
    target, draft = (make_runner(model.to(device), 4, CAPACITY, "transformers") for model in models)
    return target, draft


@pytest.fixture(scope="module")
def requests_() -> list[Request]:
    return make_requests(clear_prompts(tiny_llama(), [3, 9, 5], NEW_TOKENS), NEW_TOKENS)


@pytest.fixture(scope="module")
def plain(requests_: list[Request]) -> Any:
    return decode(AUTOREGRESSIVE, runners("cpu"), requests_)


@pytest.fixture
def machine() -> Iterator[Machine]:
    with emulated_cards(2) as machine:
        yield machine


@pytest.mark.parametrize(
    ("drafter", "temperature", "batch_size"),
    nightly_except(
        [(drafter, 0.0 if number % 2 else 0.7, 2) for number, drafter in enumerate(DRAFTERS)],
        product(DRAFTERS, (0.0, 0.7), (1, 2, 3)),
    ),
)
def test_drafters(
    drafter: str, temperature: float, batch_size: int, requests_: list[Request], machine: Machine
) -> None:
    method = parse_method(f"fixed-k:k=3,drafter={drafter}")
    torch.manual_seed(0)
    options: Any = {"sampler": SAMPLED if temperature else Sampler(), "batch_size": batch_size}
    on_card = decode(method, runners("cuda"), requests_, **options)
    assert machine.counts.launches > 0
    on_host = runners("cpu")
    # By itself a CPU rounds a head's weights to 8 bits, which draws other drafts.
    put_beside(on_host[0], untrained(on_host[0]), "head")
    assert outputs(on_card) == outputs(decode(method, on_host, requests_, **options))


@pytest.mark.parametrize(
    ("spec", "batch_size"),
    nightly_except([(spec, 3) for spec in KINDS[::2]], product(specs(), (1, 3))),
)
def test_every_method(
    spec: str,
    batch_size: int,
    requests_: list[Request],
    plain: Any,
    machine: Machine,
    tmp_path: Path,
) -> None:
    """Every night; and before that one method of every kind."""
    method = parse_method(spec.format(**filled_in(tmp_path))).prepare(ENVIRONMENT)
    held = runners("cuda:1")
    records = decode(method, held, with_references(requests_, plain), batch_size=batch_size)
    assert outputs(records) == outputs(plain)
    assert machine.cards[0].peak_bytes == 0, "everything was on the card that was named"
    assert machine.cards[1].peak_bytes > 0


def test_memory_of_a_card_does_not_grow_with_requests(
    requests_: list[Request], machine: Machine
) -> None:
    held, method, after = runners("cuda"), parse_method("specedge:depth=3,budget=8,beams=4"), []
    for _ in range(3):
        decode(method, held, requests_, batch_size=2)
        after.append(machine.cards[0].allocated_bytes)
    assert len(set(after)) == 1
