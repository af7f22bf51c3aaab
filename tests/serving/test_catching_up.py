"""A device whose draft model paused first forwards the tokens of the pause, worked out by hand."""

import pytest
from report_builders import make_record, make_round

from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.runs.deployment import Link
from specbench_kit.serving.arrivals import ReplayedArrivals, RequestArrival
from specbench_kit.serving.round_sources import RecordedRounds
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import systems

DRAFTER = Endpoint("edge", InteractionModel(a_s=0.1, b_compute_s=0.0, b_read_s=0.01, c_s=0.0))
"""A forward takes 0.1 s for every new token and 0.01 s for every token in the KV."""
DEPLOYMENT = Deployment(
    "scene", DRAFTER, Endpoint("server", InteractionModel(0, 0, 0, 0.35)), Link(rtt_s=0.2)
)
PROMPT = 5


def test_the_first_draft_after_a_pause_takes_the_time_of_the_tokens_of_the_pause() -> None:
    """Two tokens are drafted and one is accepted, three rounds pass without a draft, then two are drafted again.

    At first the device reads four tokens of the prompt (0.4 s), then the fifth (0.14 s), then its first draft token
    (0.15 s). That token is accepted, so that six tokens are in the KV. The server adds one token, and one in each round
    of the pause: the first forward after it has four new tokens (0.46 s), the second one, beside ten (0.2 s). This
    round is rejected from its first token on, which leaves ten of eleven tokens in the KV.
    """
    rounds = [
        make_round(2, accepted=1),
        make_round(),
        make_round(),
        make_round(),
        make_round(2),
        make_round(2),
    ]
    source = RecordedRounds([make_record("pausing", *rounds, prompt_ids=list(range(PROMPT)))])
    scene = Scenario(
        DEPLOYMENT,
        systems.get("wisp-cache"),
        source,
        devices=1,
        slo=parse_slo("0.5/s"),
        arrivals=ReplayedArrivals(
            (RequestArrival(0.0, PROMPT, 7), RequestArrival(90.0, PROMPT, 7))
        ),
        duration_s=20.0,
        warmup_s=0.0,
    )
    result = simulate(scene)
    assert result.rounds["submitted"].tolist() == [2, 0, 0, 0, 2, 2]
    first_s, after_pause_s, next_s = 0.4 + 0.14 + 0.15, 0.46 + 0.2, (0.1 + 0.1) + (0.1 + 0.11)
    assert result.rounds["draft_s"].tolist() == pytest.approx(
        [first_s, 0, 0, 0, after_pause_s, next_s]
    )
