"""The gRPC server: its address and certificate, its options, and the services that it offers.

Health checks and reflection need no token.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from specbench_kit.core.errors import SkitError
from specbench_kit.live.server.admission import ServerLimits
from specbench_kit.live.wire import SERVICE, Down, Up


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The HOST:PORT at which the server listens, with its TLS certificate and key, if any.

    With `client_roots`, devices need a certificate that one of these has signed.
    """

    address: str
    certificate: bytes | None = None
    key: bytes | None = None
    client_roots: bytes | None = None


def make_server(
    decode_stream: Callable[..., Awaitable[None]], listen: ListenAddress, limits: ServerLimits
) -> tuple[grpc.aio.Server, health.aio.HealthServicer, int]:
    """Return the gRPC server, its health service and its port; raise SkitError if it cannot
    listen.
    """
    heartbeat_ms = round(limits.heartbeat_s * 1000)
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", limits.frame_bytes),
            ("grpc.keepalive_time_ms", heartbeat_ms),
            ("grpc.keepalive_timeout_ms", heartbeat_ms // 2),
            (
                "grpc.http2.ping_timeout_ms",
                heartbeat_ms // 2,
            ),  # else a minute, whatever the line above says
            (
                "grpc.http2.max_pings_without_data",
                0,
            ),  # else only the first two of a silent stream are sent
            ("grpc.http2.min_ping_interval_without_data_ms", heartbeat_ms // 4),
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", limits.connection_streams),
            # A socket on which nothing comes, or whose streams have all ended, is closed.
            ("grpc.server_handshake_timeout_ms", round(limits.hello_s * 1000)),
            ("grpc.max_connection_idle_ms", round(limits.hello_s * 1000)),
        ]
    )
    decode = grpc.stream_stream_rpc_method_handler(
        decode_stream, _parse_frame, Down.SerializeToString
    )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(SERVICE, {"Decode": decode})]
    )
    health_status = add_public_services(server, SERVICE, limits.hello_s)
    try:
        if listen.certificate is None or listen.key is None:
            port = server.add_insecure_port(listen.address)
        else:
            roots = listen.client_roots
            credentials = grpc.ssl_server_credentials(
                [(listen.key, listen.certificate)], roots, roots is not None
            )
            port = server.add_secure_port(listen.address, credentials)
    except RuntimeError as error:
        raise SkitError(
            f"cannot listen on {listen.address}: choose another --listen, or end the program that uses it"
        ) from error
    return server, health_status, int(port)


def _parse_frame(content: bytes) -> Up | None:
    """Return a frame, or None for bytes that are none: an exception here would end more than this
    stream.
    """
    try:
        frame: Up = Up.FromString(content)  # Any where the stubs of protobuf are not installed
        return frame
    except DecodeError:
        return None


class _HealthChecks(health.aio.HealthServicer):
    """Health checks without watching: anybody could hold thousands of watching streams, which cost
    memory for ever.
    """

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Refuse, upon which clients of gRPC ask by single checks."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server answers single checks")


class _BriefReflection(reflection.aio.ReflectionServicer):
    """Reflection whose streams end after `stream_s`."""

    def __init__(self, names: Sequence[str], stream_s: float) -> None:
        super().__init__(names)
        self._stream_s = stream_s

    async def ServerReflectionInfo(
        self,
        requests: AsyncIterator[reflection_pb2.ServerReflectionRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        """Answer the requests of a stream until its time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._stream_s):
                async for answer in super().ServerReflectionInfo(requests, context):
                    yield answer


def add_public_services(
    server: grpc.aio.Server, name: str, stream_s: float
) -> health.aio.HealthServicer:
    """Add both services for the service `name`, and return the one that is told of the server's
    health.
    """
    health_status = _HealthChecks()
    health_pb2_grpc.add_HealthServicer_to_server(health_status, server)
    names = (name, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
        _BriefReflection(names, stream_s), server
    )
    return health_status
