"""Where a judge is told that a token stands, and what jitter, losses and hidden states do to a message."""

from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_shares_of_a_batch import SCENE

from specbench_kit.decoding.distributions import DraftForward, NodeStats
from specbench_kit.decoding.drafter import Drafter
from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.deployments.placing import states_on_the_way
from specbench_kit.methods.base import Method, Policy
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.models.executors.base import Forward
from specbench_kit.runs.deployment import Link, Placement
from specbench_kit.runs.document import HiddenStates
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import RequestTrace, TraceHeader


class Places:
    """A judge that says where it was told that a token stands."""

    def score(self, stats: NodeStats, place: int) -> float:
        return float(place)

    def score_chain(self, table: Any) -> list[float]:
        return [float(position) for position in range(1, len(table) + 1)]


def test_the_first_drafted_token_stands_at_place_1() -> None:
    """root -> 1 -> 3, root -> 2: in a tree the place is the depth."""
    forward = DraftForward(Forward([torch.zeros(1, 8)]), Sampler())
    tree = TokenTree(0)
    for token, parent in ((1, 0), (2, 0), (3, 1)):
        tree.add(token, parent, forward, 0)
    assert [tree.score(node, Places()) for node in (1, 2, 3)] == [1.0, 1.0, 2.0]


class _Asking(Policy):
    def __init__(self, scores: list[float]) -> None:
        self.scores = scores

    def draft(self, drafter: Drafter) -> None:
        for _ in range(3):
            for draft in drafter.extend(drafter.drafts):
                self.scores.append(draft.tree.score(draft.tree.last, Places()))


@dataclass(frozen=True)
class Asking(Method):
    """Drafts three tokens and writes down what the judge said of them."""

    scores: list[float] = field(default_factory=list)

    def policy(self) -> Policy:
        return _Asking(self.scores)


def requests(count: int, length: int = 1) -> list[RequestTrace]:
    """Nothing that is drafted is right."""
    nothing, statistics = np.zeros((length, 3), np.int32), np.full((length, 3, 5), 0.5, np.float32)
    answer = list(range(1, length + 4))
    return [
        RequestTrace(
            str(n), "test", [7, 8], answer[:length], "length", answer[length:], nothing, statistics
        )
        for n in range(count)
    ]


def test_so_it_does_in_a_replay() -> None:
    method = Asking()
    list(replay(method, TraceHeader(3, 0.1, (0.1,) * 4, {}), requests(1)))
    assert method.scores == [1.0, 2.0, 3.0]


def test_jitter_goes_both_ways_as_far_as_it_says() -> None:
    """Half of 100 ms and 4 bytes at 400 bytes/s, give or take 30 ms, evenly."""
    random, link = Random(0), Link(rtt_s=0.1, jitter_s=0.03)
    seconds = [link.message_s(1, 400.0, random) for _ in range(2000)]
    assert min(seconds) == pytest.approx(0.06 - 0.03, abs=2e-4)
    assert max(seconds) == pytest.approx(0.06 + 0.03, abs=2e-4)
    assert np.mean(seconds) == pytest.approx(0.06, abs=1e-3)
    assert np.std(seconds) == pytest.approx(0.06 / 12**0.5, rel=0.03)


def test_every_request_has_jitter_of_its_own() -> None:
    """Requests that are alike in all but their names."""
    step = InteractionModel(0, 0, 0, 0.01)
    scene = Deployment(
        "scene", Endpoint("edge", step), Endpoint("server", step), Link(rtt_s=0.1, jitter_s=0.03)
    )
    records = list(
        replay(Asking(), TraceHeader(3, 0.1, (0.1,) * 4, {}), requests(5), deployment=scene)
    )
    assert len({record.rounds[0].link_s for record in records}) == 5


def test_a_message_is_sent_again_until_it_arrives() -> None:
    """Half of the messages are lost; the numbers drawn lose the first one twice, and the second one never."""
    drawn = iter((0.1, 0.49, 0.5, 0.9))
    random = SimpleNamespace(random=drawn.__next__)
    link = Link(rtt_s=0.1, up_bytes_per_s=400, loss=0.5, retry_s=0.3)
    first_s, second_s = (link.message_s(4, 400, random) for _ in range(2))  # type: ignore[arg-type]
    assert first_s == pytest.approx(0.05 + 4 * 4 / 400 + 2 * 0.3)
    assert second_s == pytest.approx(0.05 + 4 * 4 / 400)


@pytest.mark.parametrize(
    ("placement", "state_bytes", "expected"),
    [("edge", 0, 3 * 100), ("edge", 8, 3 * 8), ("server", 8, 0)],
)
def test_a_token_sends_its_states_of_every_layer_to_the_edge(
    placement: Placement, state_bytes: float, expected: float
) -> None:
    deployment = replace(
        SCENE, placement=placement, link=replace(SCENE.link, state_bytes=state_bytes)
    )
    states = states_on_the_way(FixedK(2), deployment, (2, 0, 1, 2), layer_bytes=100)
    assert states == HiddenStates((0, 1, 2), expected)
    assert states_on_the_way(FixedK(2), deployment, (), layer_bytes=100) is None
