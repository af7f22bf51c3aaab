"""A verification server of a small model in a thread of its own, and devices that call it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Any

from tiny_models import GREEDY, decode, disturbed, make_runner, tiny_llama
from transformers import PreTrainedModel

from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.decoding.loop import DecodingSetup, Loop
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.decoding.verification import RemoteVerifier
from specbench_kit.live.assembly import remote_loop, streamed_loop
from specbench_kit.live.connection import ClientIdentity, Connection
from specbench_kit.live.free_running import FreeRunningVerifier
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.admission import ServerLimits
from specbench_kit.live.server.batches import BatchRunner
from specbench_kit.live.server.drafting import DraftingOffer
from specbench_kit.live.server.grammars import ServerGrammars
from specbench_kit.live.server.listening import ListenAddress
from specbench_kit.live.server.run import make_frame_handler, run_loop
from specbench_kit.live.server.scoring import OutputScorer
from specbench_kit.live.server.service import VerificationService
from specbench_kit.live.wire_verifier import WireStream, WireVerifier
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.runner import Runner
from specbench_kit.serving.schedulers.base import parse_scheduler
from specbench_kit.serving.schedulers.estimator import Estimator

CAPACITY = 160
VOCABULARY = 64
TARGET = tiny_llama()
DRAFT = disturbed(TARGET, 0.02)
DESCRIPTION = messages.Welcome(
    model="tiny", model_hash="0", tokenizer="same", dtype="float32", scheduler="fcfs"
)
DESCRIPTION.layers, DESCRIPTION.hidden_size = (
    TARGET.config.num_hidden_layers,
    TARGET.config.hidden_size,
)
LATENCY = InteractionModel(1e-5, 0.0, 0.0, 1e-3)
CALLER = ClientIdentity("same", VOCABULARY)


def make_server(
    slots: int = 4,
    limits: ServerLimits | None = None,
    listen: ListenAddress | None = None,
    tokens: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
    target_model: PreTrainedModel = TARGET,
    scores: bool = True,
    grammars: ServerGrammars | None = None,
) -> VerificationService:
    """Return a server that does not listen yet; `methods` are those with which it drafts by itself."""
    runner = make_runner(target_model, slots, CAPACITY)
    offer = DraftingOffer(
        {spec: parse_method(spec) for spec in methods}, {"draft": draft_runner(slots)}, "d"
    )
    scorer = OutputScorer(runner, target_model if scores else None)
    batch_runner = BatchRunner(
        runner, parse_scheduler("fcfs"), Estimator(LATENCY), 64, offer, scorer
    )
    target = messages.Welcome()
    target.CopyFrom(DESCRIPTION)
    target.drafting.extend(methods)
    handler = make_frame_handler(
        runner, batch_runner, limits or ServerLimits(context=CAPACITY), target, tokens, grammars
    )
    return VerificationService(handler, listen or ListenAddress("127.0.0.1:0"))


@contextmanager
def serving(
    service: VerificationService | None = None, **options: Any
) -> Iterator[tuple[VerificationService, str]]:
    """Run the server, and yield it and its address."""
    service = service or make_server(**options)
    ports: SimpleQueue[int] = SimpleQueue()
    thread = Thread(target=lambda: run_loop(service.run(ports.put)), daemon=True)
    thread.start()
    try:
        yield service, f"127.0.0.1:{ports.get(timeout=120)}"
    finally:
        service.stop()
        thread.join(30)


def draft_runner(slots: int = 4) -> Runner:
    """Return a runner of the device's draft model."""
    return make_runner(DRAFT, slots, CAPACITY)


def decode_remotely(
    method: Method,
    connection: Connection,
    requests: list[Request],
    *,
    sampler: Sampler = GREEDY,
    batch_size: int = 1,
    draft_top_n: int = 0,
    models: Mapping[str, Runner] | None = None,
    silence_s: float = 0.0,
    **setup: Any,
) -> dict[str, RequestRecord]:
    """Return the records of requests that the server verified, by request id; `models` are the device's, by name."""
    runners = {"draft": draft_runner(batch_size)} if models is None else models
    engine = remote_loop(
        method,
        runners,
        lambda clock: remote_verifier(method, connection, sampler, clock, runners, silence_s),
        DecodingSetup(
            sampler=sampler,
            batch_size=batch_size,
            capacity=CAPACITY,
            draft_top_n=draft_top_n,
            **setup,
        ),
    )
    return run(engine, requests)


def remote_verifier(
    method: Method,
    connection: Connection,
    sampler: Sampler,
    clock: MeasuringClock,
    models: Mapping[str, Runner],
    silence_s: float = 0.0,
) -> RemoteVerifier:
    """Return the verifier over a connection that the method needs."""
    if method.ahead is not None:
        return FreeRunningVerifier(connection, sampler, 0, clock, method.ahead.chunk)
    layers = method.drafting.layers(models)
    return WireVerifier(connection, sampler, 0, clock, layers, silence_s)


def generate_remotely(
    connection: Connection, requests: list[Request], **options: Any
) -> dict[str, RequestRecord]:
    """Return the records of requests that the server decoded by itself, by request id."""
    return run(generating_loop(connection, **options), requests)


def generating_loop(
    connection: Connection,
    *,
    sampler: Sampler = GREEDY,
    batch_size: int = 1,
    eos_ids: frozenset[int] = frozenset(),
    method: str = "",
    skip_forced: bool = False,
) -> Loop:
    stream = WireStream(connection, sampler, 0, method)
    setup = DecodingSetup(
        eos_ids=eos_ids, batch_size=batch_size, capacity=CAPACITY, skip_forced=skip_forced
    )
    return streamed_loop(stream, setup)


def run(loop: Loop, requests: list[Request]) -> dict[str, RequestRecord]:
    for request in requests:
        loop.submit(request)
    records: dict[str, RequestRecord] = {}
    while not loop.idle:
        records |= {record.request_id: record for record in loop.step()}
    return records


def decode_here(
    method: Method, requests: list[Request], **options: Any
) -> dict[str, RequestRecord]:
    """Return the records of requests with both models in this process, by request id."""
    slots = options.get("batch_size", 1)
    return decode(
        method, (make_runner(TARGET, slots, CAPACITY), draft_runner(slots)), requests, **options
    )
