"""Servers and streams that end in the middle of an answer, and servers that demand TLS."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread

import grpc
import pytest
from certificates import make_certificate
from command_line import error_line, skit_here
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from live_server import CALLER, VOCABULARY, decode_here, decode_remotely, make_server, serving
from streaming_server import streaming_server
from tiny_models import make_requests, outputs, random_prompts

from specbench_kit.core.errors import SkitError
from specbench_kit.live.connection import ClientIdentity, Connection, ConnectionLostError
from specbench_kit.live.connection_options import parse_link
from specbench_kit.live.server.listening import ListenAddress
from specbench_kit.live.server.settings import ServeSettings
from specbench_kit.live.wire import SERVICE
from specbench_kit.methods.spec import parse_method
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.runs.deployment import Link
from specbench_kit.runs.document import RunDescription
from specbench_kit.runs.folder import to_json

REQUESTS = make_requests(random_prompts([5, 9], VOCABULARY), 30)
CHAIN = parse_method("fixed-k:k=3")


def test_a_run_goes_on_when_another_server_takes_the_place_of_the_first() -> None:
    decoded: dict[str, list[int]] = {}
    with serving() as (_, address):
        connection = Connection(address, CALLER, Link(rtt_s=0.02))
        device = Thread(
            target=lambda: decoded.update(outputs(decode_remotely(CHAIN, connection, REQUESTS)))
        )
        device.start()
        Event().wait(0.15)
    with serving(make_server(listen=ListenAddress(address))):
        device.join(60)
    assert connection.reconnections == 1
    assert decoded == outputs(decode_here(CHAIN, REQUESTS))


def test_a_server_is_known_to_health_checks_and_reflection() -> None:
    with serving() as (_, address), grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        assert (
            health_pb2_grpc.HealthStub(channel).Check(request).status
            == health_pb2.HealthCheckResponse.SERVING
        )
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = stub.ServerReflectionInfo(iter([request]))
        assert b"remaining_ms" in answer.file_descriptor_response.file_descriptor_proto[0]


def test_beyond_loopback_a_server_needs_a_certificate() -> None:
    with pytest.raises(SkitError, match="without TLS the server listens on loopback alone"):
        ServeSettings(listen="0.0.0.0:7070")
    assert ServeSettings(listen="0.0.0.0:7070", insecure=True).listen == "0.0.0.0:7070"


def test_no_server_is_one_line() -> None:
    done = skit_here("bench", "--server", "127.0.0.1:1", "--method", "fixed-k", "--limit", 1)
    assert done.returncode == 2
    assert "error: no server answers at 127.0.0.1:1" in done.stderr


def test_a_server_of_another_kind_is_told_from_one_of_the_kit() -> None:
    with streaming_server() as (address, _):
        done = skit_here("bench", "--server", address, "--method", "fixed-k", "--limit", 1)
    line = error_line(done)
    assert line.startswith(
        f"no server answers at {address}: an HTTP server answers there, and no skit serve: name its"
    )
    assert f"as in llama-cpp://{address}" in line


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
def test_an_encrypted_server_is_reached_by_those_alone_who_trust_it(tmp_path: Path) -> None:
    pairs = [certificate(tmp_path, name) for name in ("one", "other")]
    with serving(make_server(listen=ListenAddress("127.0.0.1:0", *pairs[0]))) as (_, address):
        assert (
            Connection(address, ClientIdentity("same", VOCABULARY, roots=pairs[0][0])).welcome.model
            == "tiny"
        )
        for stranger in (CALLER, ClientIdentity("same", VOCABULARY, roots=pairs[1][0])):
            with pytest.raises(ConnectionLostError):
                Connection(address, stranger)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
def test_a_certificate_that_has_expired_is_not_trusted(tmp_path: Path) -> None:
    old = certificate(tmp_path, "old", days=-1)
    with (
        serving(make_server(listen=ListenAddress("127.0.0.1:0", *old))) as (_, address),
        pytest.raises(ConnectionLostError, match="certificate has expired"),
    ):
        Connection(address, ClientIdentity("same", VOCABULARY, roots=old[0]))


def certificate(folder: Path, name: str, days: int = 2) -> tuple[bytes, bytes]:
    """Return a self-signed certificate and its key."""
    certificate, key = make_certificate(folder, name, days)
    return certificate.read_bytes(), key.read_bytes()


def test_a_shaped_link_takes_its_round_trip_and_says_so() -> None:
    with serving() as (_, address):
        records = decode_remotely(
            CHAIN, Connection(address, CALLER, Link(rtt_s=0.03)), REQUESTS[:1]
        )
    links_s = [round_.link_s for record in records.values() for round_ in record.rounds]
    assert min(links_s) >= 0.03
    (line,) = setting_cautions(RunDescription.read({"shaped_link": asdict(Link(rtt_s=0.03))}))
    (lost,) = setting_cautions(RunDescription(reconnections=2))
    assert lost.startswith("RECONNECTED: the connection to the server was lost 2 times;")
    assert line.startswith(
        "SHAPED LINK: this machine delayed messages as a link with rtt_s=0.03 would"
    )


@pytest.mark.parametrize(("rate", "kept"), [("inf", None), ("1.25e6", 1.25e6)])
def test_an_infinite_bandwidth_of_a_shaped_link_is_null_in_run_json(
    rate: str, kept: float | None
) -> None:
    link = parse_link(f"rtt_s=0.02,up_bytes_per_s={rate}")
    assert link == Link(rtt_s=0.02, up_bytes_per_s=kept)
    assert json.loads(to_json(asdict(link)))["up_bytes_per_s"] == kept
    for refused in ("0", "-1", "nan"):
        with pytest.raises(SkitError, match="bandwidths above 0"):
            parse_link(f"down_bytes_per_s={refused}")
