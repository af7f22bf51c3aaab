"""What a device gets over the wire is what it would get with the target beside it."""

import pytest
from live_server import CALLER, CAPACITY, VOCABULARY, decode_here, decode_remotely, serving
from tiny_models import make_requests, outputs, random_prompts

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.connection import Connection
from specbench_kit.live.server.admission import ServerLimits
from specbench_kit.methods.spec import parse_method

REQUESTS = make_requests(random_prompts([5, 9, 17], VOCABULARY), 10)
SAMPLED = Sampler(0.8, top_k=20)


@pytest.mark.parametrize(
    "spec", ["autoregressive", "fixed-k:k=4", "specedge:depth=3,budget=8,beams=4", "opt-tree"]
)
@pytest.mark.parametrize("sampler", [Sampler(), SAMPLED])
def test_every_round_is_as_with_the_target_beside_the_draft_model(
    spec: str, sampler: Sampler
) -> None:
    method = parse_method(spec)
    with serving() as (_, address):
        remote = decode_remotely(method, Connection(address, CALLER), REQUESTS, sampler=sampler)
    local = decode_here(method, REQUESTS, sampler=sampler)
    assert outputs(remote) == outputs(local)
    for name, record in remote.items():
        assert [round_.accepted for round_ in record.rounds] == [
            round_.accepted for round_ in local[name].rounds
        ]
        assert all(round_.link_s > 0 and round_.verify_s > 0 for round_ in record.rounds)


def test_a_distribution_crosses_with_as_many_entries_as_are_asked_for() -> None:
    method = parse_method("fixed-k:k=3")
    with serving(limits=ServerLimits(context=CAPACITY, candidates=8)) as (_, address):
        connection = Connection(address, CALLER)
        with pytest.raises(SkitError, match="--draft-top-n 8 or less"):
            decode_remotely(method, connection, REQUESTS[:1], sampler=Sampler(1.0))
        records = decode_remotely(
            method, connection, REQUESTS[:1], sampler=Sampler(1.0), draft_top_n=8
        )
    assert [len(record.output_ids) for record in records.values()] == [10]


def test_a_batch_of_devices_in_fewer_slots_than_sessions() -> None:
    with serving(slots=2) as (service, address):
        remote = decode_remotely(
            parse_method("fixed-k:k=3"), Connection(address, CALLER), REQUESTS, batch_size=3
        )
        assert service.handler.batch_runner.evictions > 0
    assert outputs(remote) == outputs(decode_here(parse_method("fixed-k:k=3"), REQUESTS))
