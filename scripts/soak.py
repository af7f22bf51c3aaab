"""Load one server with many devices for minutes: python scripts/soak.py [--devices 1000 --seconds 600].

Server and devices run on this machine. Every device has a stream; some send rounds all the time, some misbehave. In the
end the server's memory must not have grown, and the well-behaved devices must have received the same output as the
first one alone.
"""

import argparse
import asyncio
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from time import perf_counter
from typing import Any

import grpc
import psutil
from transformers import AutoTokenizer

from specbench_kit.live.wire import METHOD, PROTOCOL, Down, Status, Up, tokenizer_hash
from specbench_kit.models.catalogue import BUNDLED, from_pretrained, locate

SERVE = "from specbench_kit.cli.main import main; main()"
CHANNELS = 16
PROMPT = [1, 5, 9, 200, 7, 42, 11, 3]
ROUNDS = 24
GROWTH_MB = 64


@dataclass
class Seen:
    """Counts over all devices."""

    rounds: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    outputs: set[tuple[int, ...]] = field(default_factory=set)


class Device:
    """One device with its stream."""

    def __init__(self, channel: Any, name: str, hello: dict[str, Any]) -> None:
        make = channel.stream_stream(METHOD, Up.SerializeToString, Down.FromString)
        self._call, self._name, self._hello, self._sessions = make(), name, hello, 0

    async def connect(self) -> None:
        await self._call.write(Up(hello=self._hello))
        await self._call.read()

    async def ask(self, **frame: Any) -> Any:
        await self._call.write(Up(**frame))
        down = await self._call.read()
        if down is grpc.aio.EOF:
            raise ConnectionError("the stream has ended")
        return getattr(down, down.WhichOneof("kind"))

    async def answer(self, seen: Seen) -> None:
        """Receive one response, with drafts that are mostly wrong."""
        self._sessions += 1
        name, random = f"{self._name}/{self._sessions}", Random(self._sessions)
        await self.ask(open={"session": name, "prompt": PROMPT, "sampling": {"request": "soak"}})
        output: list[int] = []
        for number in range(1, ROUNDS + 1):
            tokens = [random.randrange(100) for _ in range(4)]
            draft = {
                "session": name,
                "round": number,
                "base": len(PROMPT) + len(output),
                "tokens": tokens,
            }
            told = await self.ask(draft=draft)
            while getattr(told, "reason", ""):
                seen.refused[Status(told.status).name] = (
                    seen.refused.get(Status(told.status).name, 0) + 1
                )
                await asyncio.sleep(told.retry_ms / 1000)
                told = await self.ask(draft=draft)
            output += [*(tokens[place - 1] for place in told.path), told.bonus]
            seen.rounds += 1
        seen.outputs.add(tuple(output[:ROUNDS]))
        await self._call.write(Up(close={"session": name}))

    async def misbehave(self, seen: Seen) -> None:
        """Send a frame that the server refuses."""
        wrong = {
            "session": f"{self._name}/wrong",
            "round": 1,
            "base": 5,
            "tokens": [1 << 30],
            "parents": [9],
        }
        told = await self.ask(draft=wrong)
        status = Status(told.status).name
        seen.refused[status] = seen.refused.get(status, 0) + 1


async def soak(
    address: str, process: psutil.Process, hello: dict[str, Any], options: argparse.Namespace
) -> int:
    channels = [
        grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        for _ in range(CHANNELS)
    ]
    devices = [Device(channels[n % CHANNELS], f"device-{n}", hello) for n in range(options.devices)]
    began_s = perf_counter()
    await asyncio.gather(*(device.connect() for device in devices))
    print(f"{len(devices)} devices connected in {perf_counter() - began_s:.1f} s")
    alone = Seen()
    await devices[0].answer(alone)
    seen, memory_mb, until_s = Seen(), list[float](), perf_counter() + options.seconds
    idle = devices[options.active :]

    async def go_on(device: Device) -> None:
        while perf_counter() < until_s:
            await device.answer(seen)

    async def watch() -> None:
        while perf_counter() < until_s:
            await asyncio.sleep(options.seconds / 20)
            memory_mb.append(process.memory_info().rss / 1e6)
            for device in idle[:20]:
                with suppress(ConnectionError):
                    await device.misbehave(seen)

    await asyncio.gather(watch(), *(go_on(device) for device in devices[: options.active]))
    growth_mb = memory_mb[-1] - memory_mb[len(memory_mb) // 4]
    print(
        f"{seen.rounds} rounds of {options.active} devices in {options.seconds:g} s; refused: {seen.refused}"
    )
    quarter_mb = memory_mb[len(memory_mb) // 4]
    print(
        f"memory of the server after a quarter and at the end: {quarter_mb:.0f}, {memory_mb[-1]:.0f} MB"
    )
    print(f"outputs as the first device's alone: {seen.outputs == alone.outputs}")
    for channel in channels:
        await channel.close()
    return 0 if seen.outputs == alone.outputs and growth_mb < GROWTH_MB else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--active", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    tokenizer = from_pretrained(AutoTokenizer, locate(BUNDLED, "target"))
    hello = {
        "protocol": PROTOCOL,
        "tokenizer": tokenizer_hash(tokenizer),
        "vocabulary": len(tokenizer),
    }
    command = [sys.executable, "-c", SERVE, "serve", "--target", BUNDLED, "--listen", "127.0.0.1:0"]
    command += ["--slots", "64"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        address = next(
            line.split()[-1] for line in server.stderr if line.startswith("listening on")
        )
        return asyncio.run(soak(address, psutil.Process(server.pid), hello, options))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
