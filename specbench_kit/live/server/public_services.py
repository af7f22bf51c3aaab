"""The services that need no token: health checks and reflection. None of them leaves a stream open for long."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc


class _HealthChecks(health.aio.HealthServicer):
    """Health checks without watching: anybody could hold thousands of watching streams, which cost memory for ever."""

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext) -> None:
        """Refuse, upon which clients of gRPC ask by single checks."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server answers single checks")


class _BriefReflection(reflection.aio.ReflectionServicer):
    """Reflection whose streams end after `stream_s`."""

    def __init__(self, names: Sequence[str], stream_s: float) -> None:
        super().__init__(names)
        self._stream_s = stream_s

    async def ServerReflectionInfo(
        self, requests: AsyncIterator[reflection_pb2.ServerReflectionRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        """Answer the requests of a stream until its time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._stream_s):
                async for answer in super().ServerReflectionInfo(requests, context):
                    yield answer


def add_public_services(server: grpc.aio.Server, name: str, stream_s: float) -> health.aio.HealthServicer:
    """Add both services for the service `name`, and return the one that is told of the server's health."""
    health_status = _HealthChecks()
    health_pb2_grpc.add_HealthServicer_to_server(health_status, server)
    names = (name, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(_BriefReflection(names, stream_s), server)
    return health_status
