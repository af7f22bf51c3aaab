"""`skit serve`: a server made from its settings, and its run until a signal.

The scheduler plans with the times of a profile, or of a few forwards at the start. The event loop
is libuv's where it is installed, since it takes less time per message.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from specbench_kit.core.errors import require
from specbench_kit.core.typed_json import Written
from specbench_kit.core.version import __version__
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.constraint import LIBRARY, Grammars
from specbench_kit.decoding.drafting.base import DRAFT
from specbench_kit.decoding.latency import InteractionModel, LatencyModel
from specbench_kit.deployments.placing import environment
from specbench_kit.live.certificates import read_certified_key, read_roots
from specbench_kit.live.connection_options import host_and_port
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.admission import ServerLimits
from specbench_kit.live.server.batches import BatchRunner
from specbench_kit.live.server.drafting import DraftingOffer
from specbench_kit.live.server.grammars import ServerGrammars
from specbench_kit.live.server.handler import FrameHandler
from specbench_kit.live.server.listening import ListenAddress
from specbench_kit.live.server.metrics import EventLog
from specbench_kit.live.server.scoring import OutputScorer
from specbench_kit.live.server.service import VerificationService
from specbench_kit.live.server.sessions import SessionTable
from specbench_kit.live.server.settings import ServeSettings
from specbench_kit.live.wire import PROTOCOL, tokenizer_hash
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.draft_library import HEAD
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.models.runner import Append, Runner
from specbench_kit.predictors.library import PairHashes
from specbench_kit.profilers import loading
from specbench_kit.runs.provenance import hash_model
from specbench_kit.serving.schedulers.base import parse_scheduler
from specbench_kit.serving.schedulers.estimator import Estimator

SWITCH_S = 0.0005
"""Interval at which Python switches threads: its default of 5 ms would let answers wait for the
next batch's set-up.
"""


def make_service(settings: ServeSettings) -> tuple[VerificationService, Written]:
    """Return a server that does not listen yet, and facts about it to show."""
    scheduler = parse_scheduler(settings.scheduler)
    tokens = settings.tokens()
    log = EventLog(settings.log)
    listen = ListenAddress(settings.listen)
    if settings.tls_cert is not None and settings.tls_key is not None:
        own = read_certified_key(settings.tls_cert, settings.tls_key, ("--tls-cert", "--tls-key"))
        client_ca = settings.tls_client_ca
        trusted = None if client_ca is None else read_roots(client_ca, "--tls-client-ca")
        listen = ListenAddress(settings.listen, own.certificate, own.key, trusted)
    named = [parse_method(spec) for spec in settings.methods]
    needed = dict.fromkeys(model for method in named for model in method.drafting.models)
    require(
        settings.draft is not None or DRAFT not in needed,
        "--method: it drafts with a draft model: name one by --draft",
    )
    require(
        settings.draft is None or DRAFT in needed,
        "--draft has no effect: no --method drafts with a draft model on the server; give one or leave it out",
    )
    pair = load_pair(
        settings.target,
        settings.draft if DRAFT in needed else None,
        others=[name for name in needed if name != DRAFT],
        device=settings.device,
        dtype=settings.dtype,
        executor=settings.executor,
    )
    context = min([settings.session_tokens, *(model.context for model in pair.loaded.values())])
    runners = {
        name: model.runner(settings.slots, context, pair.vocabulary)
        for name, model in pair.loaded.items()
    }
    runner = runners.pop("target")
    drafting = _drafting_offer(settings.methods, pair, runners)
    description = pair.target.describe(hash_model)
    latency, origin = expected_latency(settings.profile, str(description.hash), runner)
    target = messages.Welcome(
        model=str(description.name),
        model_hash=str(description.hash),
        parameters=description.parameters,
        tokenizer=tokenizer_hash(pair.tokenizer),
        eos_ids=sorted(pair.eos_ids),
        dtype=str(pair.target.dtype).removeprefix("torch."),
        scheduler=settings.scheduler,
        drafting=list(drafting.methods),
        draft_hash=drafting.draft_hash,
        layers=pair.target.text_config.num_hidden_layers,
        hidden_size=pair.target.text_config.hidden_size,
    )
    limits = settings.limits(context)
    scorer = OutputScorer(runner, pair.target.shell)
    batch_runner = BatchRunner(
        runner, scheduler, Estimator(latency), settings.max_batch, drafting, scorer
    )
    grammars = ServerGrammars(_grammar_compiler(pair))
    handler = make_frame_handler(runner, batch_runner, limits, target, tokens, grammars)
    facts: Written = {
        "target": target.model,
        "scheduler": settings.scheduler,
        "latency": origin,
        "tls": listen.key is not None,
    }
    return VerificationService(handler, listen, log), facts


def _grammar_compiler(pair: Pair) -> Callable[[], Grammars] | None:
    """Return what makes the compiler of devices' grammars once one is sent; None without the
    library.
    """
    if find_spec(LIBRARY) is None:
        return None
    return lambda: Grammars(pair.tokenizer, pair.eos_ids)


def _drafting_offer(
    specs: Sequence[str], pair: Pair, models: Mapping[str, Runner]
) -> DraftingOffer:
    """Return the methods that the server drafts with, prepared for this machine."""
    if not specs:
        return DraftingOffer()
    for name, runner in models.items():
        runner.masked = () if name.startswith(HEAD) else pair.masked
    draft_hash = "" if pair.draft is None else str(pair.draft.describe(hash_model).hash)
    prepared = environment(
        PairHashes(str(pair.target.describe(hash_model).hash), draft_hash), None, pair.target.device
    )
    return DraftingOffer(
        {spec: parse_method(spec).prepare(prepared) for spec in specs}, models, draft_hash
    )


def make_frame_handler(
    runner: Runner,
    batch_runner: BatchRunner,
    limits: ServerLimits,
    target: messages.Welcome,
    tokens: Sequence[str] = (),
    grammars: ServerGrammars | None = None,
) -> FrameHandler:
    """Return the handler of all streams; `target` holds those fields of the welcome that describe
    the model.
    """
    grammars = grammars or ServerGrammars()
    vocabulary = runner.vocabulary or 0
    welcome = messages.Welcome(
        protocol=PROTOCOL,
        server=f"skit {__version__}",
        vocabulary=vocabulary,
        bitwise=runner.executor.bitwise,
        device=str(runner.device),
        heartbeat_s=limits.heartbeat_s,
        generates=True,
        scored=min(limits.context, batch_runner.scorer.most_tokens),
        grammar_bytes=grammars.most_bytes,
        limits=messages.Limits(
            sessions=limits.sessions,
            nodes=limits.nodes,
            context=limits.context,
            frame_bytes=limits.frame_bytes,
            credit=limits.credit,
            candidates=limits.candidates,
            batch=batch_runner.limits.requests,
            slots=runner.executor.slots,
            ahead=limits.ahead,
        ),
    )
    welcome.MergeFrom(target)
    handler = FrameHandler(
        SessionTable(limits, vocabulary, welcome.layers, grammars), batch_runner, welcome, tokens
    )
    handler.metrics.most_slots.set(runner.executor.slots)
    return handler


def serve(
    settings: ServeSettings, service: VerificationService, ready: Callable[[int], None]
) -> None:
    """Serve until SIGINT or SIGTERM; call `ready` with the port once the server listens."""
    if settings.metrics is not None:
        service.handler.metrics.serve(*host_and_port(settings.metrics))
    sys.setswitchinterval(SWITCH_S)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, service.stop)
        await service.run(ready)

    run_loop(run())


if find_spec("uvloop") is None:  # uvloop does not exist for Windows
    from asyncio import run as run_loop
else:
    from uvloop import run as run_loop

__all__ = ["run_loop"]


CACHED = 128
"""Tokens in KV before the timed forwards."""
SHAPES = ((1, 1), (9, 1), (9, 4), (33, 1))
"""New tokens per request, and requests, of the forwards that are timed if there is no profile."""
REPETITIONS = 5
"""Timings of each shape, of which the shortest counts."""


def expected_latency(
    profile: str | None, model_hash: str, runner: Runner
) -> tuple[LatencyModel, str]:
    """Return the latency model that the scheduler plans with, and where it comes from.

    It is that of the named profile, else of one measured on this machine, else a rough one of a few
    forwards.
    """
    if profile is not None:
        return loading.load(profile, model_hash=model_hash).latency(), profile
    measured = loading.find_measured(model_hash, "verifier", runner.device)
    if measured is not None:
        return measured.latency(), measured.name
    return _time_forwards(
        runner
    ), "a few forwards at the start; skit profile-verifier measures a profile"


def _time_forwards(runner: Runner) -> LatencyModel:
    """Return a line, with seconds per forward and per new token, through the times of a few
    forwards.
    """
    cached = min(CACHED, runner.capacity // 2)
    slots = [runner.acquire() for _ in range(min(4, runner.executor.slots))]
    for slot in slots:
        runner.forward([Append(slot, [1] * cached)])
        runner.commit(slot, range(cached))
    points = []
    for tokens, requests in SHAPES:
        times = []
        for _ in range(REPETITIONS):
            began_s = monotonic_s()
            new = min(tokens, cached)
            runner.forward([Append(slot, [1] * new, keep=new) for slot in slots[:requests]])
            times.append(monotonic_s() - began_s)
            for slot in slots[:requests]:
                runner.commit(slot, [])
        points.append((tokens * len(slots[:requests]), min(times)))
    for slot in slots:
        runner.release(slot)
    (fewest, shortest_s), (largest, longest_s) = points[0], max(points)
    per_token_s = max(0.0, (longest_s - shortest_s) / (largest - fewest))
    return InteractionModel(per_token_s, 0.0, 0.0, max(1e-6, shortest_s - fewest * per_token_s))
