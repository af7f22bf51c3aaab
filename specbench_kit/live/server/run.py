"""A server from its settings: the target, what is expected of its time, and the door."""

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from specbench_kit.core.version import __version__
from specbench_kit.live.server.activity import EventLog
from specbench_kit.live.server.batches import BatchRunner
from specbench_kit.live.server.latency import expected_latency
from specbench_kit.live.server.limits import ServerLimits
from specbench_kit.live.server.loop import run_loop
from specbench_kit.live.server.metrics import ServerMetrics
from specbench_kit.live.server.service import ListenAddress, VerificationService
from specbench_kit.live.server.sessions import SessionTable
from specbench_kit.live.server.settings import ServeSettings, host_and_port, read
from specbench_kit.live.server.stream import FrameHandler
from specbench_kit.live.wire import PROTOCOL, tokenizer_hash
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.pair import load_pair
from specbench_kit.models.runner import Runner
from specbench_kit.runs.provenance import hash_model
from specbench_kit.serving.schedulers.base import parse_scheduler
from specbench_kit.serving.schedulers.estimator import Estimator

Fields = dict[str, Any]
SWITCH_S = 0.0005
"""After which one thread lets another go on: an answer must not wait for the preparation of the next batch."""


def make_service(settings: ServeSettings) -> tuple[VerificationService, ServerMetrics, Fields]:
    """A server that does not listen yet, and what there is to say of it."""
    scheduler, tokens, door = parse_scheduler(settings.scheduler), settings.tokens(), _door(settings)
    pair = load_pair(settings.target, None, device=settings.device, dtype=settings.dtype)
    context = min(settings.session_tokens, pair.target.context)
    runner = Runner(make_executor(pair.target.model, settings.slots, context, pair.vocabulary))
    about = pair.target.describe(hash_model)
    latency, origin = expected_latency(settings.profile, about["hash"], runner)
    stated = {
        "model": about["name"],
        "model_hash": about["hash"],
        "parameters": about["parameters"],
        "tokenizer": tokenizer_hash(pair.tokenizer),
        "eos_ids": sorted(pair.eos_ids),
        "dtype": str(pair.target.model.dtype).removeprefix("torch."),
        "scheduler": settings.scheduler,
    }
    bounds = ServerLimits(context=context, sessions=settings.sessions)
    batches = BatchRunner(runner, scheduler, Estimator(latency), settings.most)
    desk = make_frame_handler(runner, batches, bounds, stated, tokens)
    told = {"target": about["name"], "scheduler": settings.scheduler, "latency": origin, "tls": door.key is not None}
    return VerificationService(desk, door, EventLog(settings.log)), desk.counters, told


def make_frame_handler(
    runner: Runner, batches: BatchRunner, bounds: ServerLimits, stated: Fields, tokens: Sequence[str] = ()
) -> FrameHandler:
    """What all streams share; `stated` is what is said of the target."""
    vocabulary = runner.vocabulary or 0
    told = ("sessions", "nodes", "context", "frame_bytes", "credit", "candidates")
    welcome = {
        **stated,
        "protocol": PROTOCOL,
        "server": f"skit {__version__}",
        "vocabulary": vocabulary,
        "bitwise": runner.executor.bitwise,
        "device": str(runner.device),
        "heartbeat_s": bounds.heartbeat_s,
        "limits": {
            **{name: getattr(bounds, name) for name in told},
            "batch": batches.limits.requests,
            "slots": runner.executor.slots,
        },
    }
    return FrameHandler(SessionTable(bounds, vocabulary), batches, welcome, tokens, ServerMetrics())


def serve(
    settings: ServeSettings, service: VerificationService, counters: ServerMetrics, ready: Callable[[int], None]
) -> None:
    """Until SIGINT or SIGTERM."""
    if settings.metrics is not None:
        counters.serve(*host_and_port(settings.metrics))

    sys.setswitchinterval(SWITCH_S)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, service.stop)
        await service.run(ready)

    run_loop(run())


def _door(settings: ServeSettings) -> ListenAddress:
    if settings.tls_cert is None or settings.tls_key is None:
        return ListenAddress(settings.listen)
    return ListenAddress(settings.listen, read(settings.tls_cert), read(settings.tls_key))
