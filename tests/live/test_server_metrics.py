"""What operators see of a server: metrics and the log."""

import json
from pathlib import Path

import pytest
from hostile_devices import until
from live_server import CALLER, VOCABULARY, decode_remotely, make_server, serving
from tiny_models import make_requests, random_prompts

from specbench_kit.core.errors import SkitError
from specbench_kit.live.connection import Connection
from specbench_kit.live.server.metrics import EventLog
from specbench_kit.live.wire import Up
from specbench_kit.methods.spec import parse_method

REQUESTS = make_requests(random_prompts([5, 9, 7], VOCABULARY), 12)


def test_metrics_count_what_the_records_of_a_device_hold() -> None:
    with serving(slots=2) as (service, address):
        registry = service.handler.metrics.registry
        records = decode_remotely(
            parse_method("fixed-k:k=3"), Connection(address, CALLER), REQUESTS, batch_size=3
        )
        rounds = [step for record in records.values() for step in record.rounds]
        expected = {
            "rounds_total": len(rounds),
            "drafted_tokens_total": sum(step.submitted for step in rounds),
            "accepted_tokens_total": sum(step.accepted for step in rounds),
            "committed_tokens_total": sum(step.accepted + 1 for step in rounds),
            "failed_rounds_total": 0,
            "kv_slots": 2,
        }
        until(lambda: registry.get_sample_value("skit_rounds_total") == len(rounds))
        assert {name: registry.get_sample_value(f"skit_{name}") for name in expected} == expected
        until(
            lambda: (
                registry.get_sample_value("skit_evictions_total")
                == service.handler.batch_runner.evictions
                > 0
            )
        )
        until(
            lambda: registry.get_sample_value("skit_kv_slots_used") == 0
        )  # all sessions were closed
        assert any(metric.name.startswith("process_") for metric in registry.collect())


def test_the_log_holds_sessions_and_streams_with_their_ends_and_refusals(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    service = make_server()
    service.log = service.handler.log = EventLog(log)
    with serving(service) as (_, address):
        connection = Connection(address, CALLER)
        (record,) = decode_remotely(parse_method("fixed-k:k=3"), connection, REQUESTS[:1]).values()
        connection.send(Up(draft={"session": "none", "round": 1}))
        connection.receive(60)
        connection.close()
        until(lambda: '"left"' in log.read_text(encoding="utf-8"))
    events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [event["event"] for event in events] == [
        "ready",
        "stream",
        "opened",
        "ended",
        "refused",
        "left",
        "leaving",
    ]
    ended, refused = events[3], events[4]
    assert (ended["reason"], ended["rounds"]) == ("closed", len(record.rounds))
    assert ended["committed"] == sum(step.accepted + 1 for step in record.rounds)
    assert (refused["status"], refused["session"]) == ("UNKNOWN_SESSION", "none")


def test_a_log_takes_a_bounded_part_of_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path, most_bytes=1000)
    for number in range(100):
        log.write("refused", number=number)
    older, newer = (
        file.read_text(encoding="utf-8") for file in (tmp_path / "events.jsonl.1", path)
    )
    assert len(older) + len(newer) < 2200
    assert json.loads((older + newer).splitlines()[-1])["number"] == 99


def test_metrics_at_an_address_in_use_are_one_line() -> None:
    with serving() as (service, address):
        host, port = address.split(":")
        with pytest.raises(SkitError, match=f"--metrics: cannot listen on {address}"):
            service.handler.metrics.serve(host, int(port))
