"""Measure what server and network add to a round on loopback, against a gRPC echo that uses a second thread."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from statistics import median
from time import perf_counter
from typing import Any

import grpc

from benchmarks.common import Bound, Figure, Outcome, Setting, over_rounds
from specbench_kit.live.connection import ClientIdentity, Connection
from specbench_kit.live.wire import Up, tokenizer_hash

ROUNDS, WARM = 200, 20
PROMPT = 64
ECHO = "/benchmark.Echo/Decode"
SERVE = "from specbench_kit.cli.main import main; main()"
ECHO_SERVER = "from benchmarks.wire import echo; echo()"


def run(setting: Setting) -> Outcome:
    """Measure the round trip minus queue and verification with an idle server, in turns with the echo."""
    server = [SERVE, "serve", "--target", "bundled", "--listen", "127.0.0.1:0", "--slots", "2"]
    with _process(server) as address, _process([ECHO_SERVER]) as echo_address:
        tokenizer = setting.pair.tokenizer
        connection = Connection(address, ClientIdentity(tokenizer_hash(tokenizer), len(tokenizer)))
        wire_ms, echo_ms = [], []
        for number in range(setting.rounds):
            wire_ms.append(1e3 * median(_rounds(connection, f"benchmark-{number}")))
            echo_ms.append(1e3 * median(_echoes(echo_address)))
        connection.close()
    ratio = median(wire_ms) / median(echo_ms)
    figures = [
        over_rounds("round trip minus queue and verification", wire_ms, "ms", Bound(most=0.5)),
        over_rounds("a plain echo with a hand-over", echo_ms, "ms"),
        Figure("the first over the second", ratio, "times"),
    ]
    return Outcome("Wire: what server and loopback add to a round", figures)


def _rounds(connection: Connection, name: str) -> Iterator[float]:
    """Yield the seconds of rounds with a draft of four tokens, after a warm-up."""
    connection.send(
        Up(open={"session": name, "prompt": [1] * PROMPT, "sampling": {"request": name}})
    )
    connection.receive()
    base = PROMPT
    for number in range(1, ROUNDS + WARM + 1):
        began_s = perf_counter()
        draft = {"session": name, "round": number, "base": base, "tokens": [1, 2, 3, 4]}
        connection.send(Up(draft=draft))
        arrived_s, down = connection.receive()
        verdict = down.verdict
        base += len(verdict.path) + 1
        if number > WARM:
            yield arrived_s - began_s - (verdict.queue_us + verdict.verify_us) / 1e6
    connection.send(Up(close={"session": name}))


def _echoes(address: str) -> Iterator[float]:
    out: SimpleQueue[Any] = SimpleQueue()
    with grpc.insecure_channel(address) as channel:
        answers = channel.stream_stream(ECHO)(iter(out.get, None))
        for number in range(ROUNDS + WARM):
            began_s = perf_counter()
            out.put(b"x" * 60)
            next(answers)
            if number >= WARM:
                yield perf_counter() - began_s
        out.put(None)


@contextmanager
def _process(command: list[str]) -> Iterator[str]:
    """Start a server process and yield its address."""
    process = subprocess.Popen([sys.executable, "-c", *command], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield next(line.split()[-1] for line in process.stderr if line.startswith("listening on"))
    finally:
        process.terminate()
        process.wait()


def echo() -> None:
    """Serve: answer every message with itself, through another thread."""
    pool = ThreadPoolExecutor(1)

    async def decode(_: Any, context: Any) -> None:
        loop = asyncio.get_running_loop()
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(await loop.run_in_executor(pool, bytes, message))

    async def serve() -> None:
        server = grpc.aio.server()
        handlers = {"Decode": grpc.stream_stream_rpc_method_handler(decode)}
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("benchmark.Echo", handlers)]
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(f"listening on 127.0.0.1:{port}", file=sys.stderr, flush=True)
        await server.wait_for_termination()

    asyncio.run(serve())
