"""Tree levels of a feature head in a pipeline."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_heads import heads_beside, put_beside, untrained
from tiny_models import decode, make_requests, make_runner, tiny_llama
from transformers import PreTrainedModel

from specbench_kit.decoding.latency import ContextModel, TableModel
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.pipeline.loop import PipelineEngine
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.head import expand_logits
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.runner import Runner
from specbench_kit.runs.deployment import Link
from specbench_kit.studies.training.head_training import unroll

PROMPT = [1, 2, 3, 4, 5]
CHAIN = "specpipe:stages=3,width=1,children=1,drafter=head"
PLACE = Deployment(
    "place",
    Endpoint("drafter", TableModel((0.001,))),
    Endpoint("stages", ContextModel(0, 0, 0.3), stages=3),
    Link(down_bytes_per_s=1000, state_bytes=15),
    placement="server",
)


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return tiny_llama(0, vocab_size=6)


@pytest.fixture(scope="module")
def head(runners: tuple[Runner, Runner]) -> HeadModel:
    """Untrained, and right now and then among so few tokens; it reads the layers 0, 1 and 1."""
    return untrained(runners[0], seed=4)


@pytest.fixture(scope="module")
def runners(target: PreTrainedModel) -> tuple[Runner, Runner]:
    return make_runner(target, 3, 128), make_runner(target, 3, 128)


@pytest.fixture
def pair(runners: tuple[Runner, Runner], head: HeadModel) -> tuple[Runner, Runner]:
    put_beside(runners[0], head, "head")  # unrounded, since a test compares what it says
    return runners


@torch.inference_mode()
def expected(
    head: HeadModel, target: PreTrainedModel, text: list[int], path: list[int]
) -> torch.Tensor:
    """Return the head's probabilities after a path below a text whose last token alone the target has not seen."""
    hidden = target(input_ids=torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
    projected = head.fc(torch.cat([hidden[layer] for layer in head.config.layers], -1)[0])
    fused = torch.cat((projected, torch.zeros(len(path), projected.shape[-1])))[None]
    *_, state = unroll(head, torch.tensor([text + path]), fused, len(path) + 1, first=len(text) - 2)
    return expand_logits(head.lm_head(head.norm(state[0, :1])), head.tokens, 6).softmax(-1)[0]


def test_every_level_stands_on_what_the_target_made_of_all_before_the_root(
    pair: tuple[Runner, Runner], head: HeadModel, target: PreTrainedModel
) -> None:
    method = parse_method("specpipe:stages=3,width=4,children=2,drafter=head")
    other_runners = heads_beside(method, pair[0])
    engine = local_loop(method, *pair, others=other_runners, setup=DecodingSetup(batch_size=2))
    assert isinstance(engine, PipelineEngine)
    assert engine.drafter is not None
    step, observations = engine.drafter.step, []

    def watched(streams: Any) -> Any:
        states = step(streams)
        for stream in streams:
            if stream.slot in states:
                flight = stream.flight
                paths = [path_to(flight.parents, flight.tokens, node) for node in flight.bottom]
                observations.append((list(stream.session.tokens), paths, states[stream.slot]))
        return states

    engine.drafter.step = watched  # type: ignore[method-assign]
    for request in make_requests([PROMPT, [3]], 12):
        engine.submit(request)
    while not engine.idle:
        engine.step()
    assert {len(paths[0]) for _, paths, _ in observations} == {0, 1, 2}
    for text, paths, states in observations[::3]:
        expected_states = torch.stack([expected(head, target, text, path) for path in paths])
        torch.testing.assert_close(states, expected_states, atol=1e-4, rtol=1e-4)


def path_to(parents: list[int], tokens: list[int], place: int) -> list[int]:
    return [] if place == 0 else [*path_to(parents, tokens, parents[place]), tokens[place]]


def test_all_that_is_in_flight_is_forwarded_anew_behind_a_token(
    pair: tuple[Runner, Runner],
) -> None:
    """Nothing is drafted before the prompt was seen; then a level a step, until the pipeline is full and every token
    has root and both levels forwarded again: 1 ms each."""
    (record,) = decode(
        parse_method(CHAIN), pair, make_requests([PROMPT], 40), deployment=PLACE
    ).values()
    first, *later = record.rounds
    assert first.draft_s == 0.0
    assert sum(step.accepted for step in later) > 5
    for step in later:
        assert step.draft_s == pytest.approx(0.001 * (3 + 3 * (step.steps - 3)))


def test_states_cross_the_link_token_by_token(pair: tuple[Runner, Runner]) -> None:
    """4 ms for every step's token; 2 layers of 15 bytes for all of the prompt and every token that was answered."""
    deployment = replace(PLACE, placement="edge")
    (record,) = decode(
        parse_method(CHAIN), pair, make_requests([PROMPT], 20), deployment=deployment
    ).values()
    steps = sum(step.steps for step in record.rounds)
    assert sum(step.link_s for step in record.rounds) == pytest.approx(
        steps * 0.004 + (4 + 20) * 0.030
    )
