"""Draft and target both at the server: its outputs, its rounds, and what it does not offer."""

from dataclasses import replace

import pytest
from live_server import (
    CALLER,
    VOCABULARY,
    decode_here,
    decode_remotely,
    generate_remotely,
    make_server,
    serving,
)
from tiny_models import make_requests, outputs, random_prompts

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.connection import Connection
from specbench_kit.live.server.drafting import DraftingOffer
from specbench_kit.methods.spec import parse_method

REQUESTS = make_requests(random_prompts([5, 9, 17], VOCABULARY), 12)
SPECS = (
    "fixed-k:k=3",
    "threshold:threshold=0.3",
    "specinfer:branching=2-1",
    "prompt-lookup",
    "specedge",
)
GREEDY, SAMPLED = Sampler(), Sampler(0.8, top_k=20)


@pytest.mark.parametrize(
    ("spec", "sampler"),
    [*((spec, GREEDY) for spec in SPECS), (SPECS[0], SAMPLED), (SPECS[3], SAMPLED)],
)
def test_a_server_that_drafts_gives_what_the_method_gives_here(spec: str, sampler: Sampler) -> None:
    with serving(methods=SPECS) as (_, address):
        streamed = generate_remotely(
            Connection(address, CALLER), REQUESTS, sampler=sampler, method=spec
        )
    local = decode_here(parse_method(spec), REQUESTS, sampler=sampler)
    assert outputs(streamed) == outputs(local)
    for name, record in streamed.items():
        assert all(step.draft_s > 0 for step in record.rounds)
        if spec != "specedge":  # which here drafts ahead while the target verifies
            assert [(step.submitted, step.accepted) for step in record.rounds] == [
                (step.submitted, step.accepted) for step in local[name].rounds
            ]


def test_responses_share_batches_and_slots_with_the_drafts_of_devices() -> None:
    """Fewer slots than sessions: responses lose their KV in both models and go on with the same tokens."""
    with serving(slots=2, methods=SPECS) as (service, address):
        streamed = generate_remotely(
            Connection(address, CALLER), REQUESTS, batch_size=3, method=SPECS[0]
        )
        assert service.handler.batch_runner.evictions > 0
        verified = decode_remotely(
            parse_method(SPECS[0]), Connection(address, CALLER), REQUESTS, batch_size=3
        )
    plain = outputs(decode_here(parse_method("autoregressive"), REQUESTS))
    assert outputs(streamed) == outputs(verified) == plain


def test_a_drafter_that_searches_finished_outputs_searches_those_of_the_same_device() -> None:
    """A second benchmark, which is another device, must not be drafted for with the answers of the first."""

    def rounds(device: str) -> list[tuple[int, int]]:
        connection = Connection(address, replace(CALLER, device=device))
        records = generate_remotely(connection, REQUESTS, method="suffix")
        return [
            (step.submitted, step.accepted) for record in records.values() for step in record.rounds
        ]

    with serving(methods=("suffix",)) as (_, address):
        first, second, again = rounds("one"), rounds("two"), rounds("one")
    assert second == first
    assert len(again) < len(first)


def test_an_end_inside_a_round_ends_the_response_and_a_later_draft_is_verified_right() -> None:
    plain = decode_here(parse_method("autoregressive"), REQUESTS[:1])
    tokens = next(iter(plain.values())).output_ids
    with serving(methods=SPECS) as (_, address):
        for count in range(1, 6):
            (record,) = generate_remotely(
                Connection(address, CALLER),
                REQUESTS[:1],
                method=SPECS[0],
                eos_ids=frozenset({tokens[count]}),
            ).values()
            assert record.output_ids == tokens[: tokens.index(tokens[count]) + 1]


def test_a_method_that_the_server_does_not_offer_is_named() -> None:
    message = "UNKNOWN_METHOD: 'fixed-k:k=9'; this server drafts with fixed-k:k=3, threshold"
    with serving(methods=SPECS[:2]) as (_, address), pytest.raises(SkitError, match=message):
        generate_remotely(Connection(address, CALLER), REQUESTS, method="fixed-k:k=9")


@pytest.mark.parametrize("spec", ["autoregressive", "oracle", "specpipe"])
def test_a_method_that_cannot_draft_at_a_server_is_refused_at_its_start(spec: str) -> None:
    with pytest.raises(SkitError, match=f"--method {spec}: the server cannot draft with it"):
        DraftingOffer({spec: parse_method(spec)})
    assert make_server().handler.welcome.drafting == []
