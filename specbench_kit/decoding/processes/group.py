"""The ranks of a pipeline as one group: they find each other, and exchange messages over
torch.distributed.

A message is JSON, or a tensor whose shape both sides know.
"""

import json
import socket
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from specbench_kit.decoding.processes.rank import Rank


class Channel:
    """Sends without waiting and receives in the order of sending.

    `device_group`, if there is one, carries hidden states directly between devices.
    """

    def __init__(self, device: torch.device, device_group: dist.ProcessGroup | None = None) -> None:
        self._device = device
        self._device_group = device_group
        self._unsent: list[tuple[dist.Work | None, Tensor]] = []
        """What may still be on its way: a tensor must stay in memory until its send has ended."""

    def send(self, rank: int, content: object) -> None:
        """Send anything that JSON can express."""
        payload = torch.frombuffer(bytearray(json.dumps(content).encode()), dtype=torch.uint8)
        self.send_tensor(rank, torch.tensor([len(payload)]))
        self.send_tensor(rank, payload)

    def receive(self, rank: int) -> Any:
        """Wait for what `send` sent, and return it."""
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, rank)
        payload = torch.zeros(int(size), dtype=torch.uint8)
        dist.recv(payload, rank)
        return json.loads(payload.numpy().tobytes())

    def send_tensor(self, rank: int, tensor: Tensor) -> None:
        """Send a tensor by way of main memory."""
        tensor = tensor.cpu().contiguous()
        self._unsent.append((dist.isend(tensor, rank), tensor))

    def receive_tensor(self, rank: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Wait for what `send_tensor` sent, and return it on this rank's device."""
        tensor = torch.empty(shape, dtype=dtype)
        dist.recv(tensor, rank)
        return tensor.to(self._device)

    def settle(self) -> None:
        """Wait until everything that was sent has left."""
        for work, _ in self._unsent:
            if work is not None:
                work.wait()
        self._unsent.clear()

    def exchange(
        self,
        outgoing: tuple[int, Tensor] | None,
        incoming: tuple[int, Sequence[int], torch.dtype] | None,
    ) -> Tensor | None:
        """Hand on hidden states and return those that come in, from device to device if each rank
        has its own.
        """
        if self._device_group is None:
            if outgoing is not None:
                self.send_tensor(*outgoing)
            return self.receive_tensor(*incoming) if incoming is not None else None
        # Both directions as one batch: in a ring of ranks that each send first, NCCL would wait
        # forever.
        operations = []
        received = None
        if outgoing is not None:
            operations.append(
                dist.P2POp(dist.isend, outgoing[1].contiguous(), outgoing[0], self._device_group)
            )
        if incoming is not None:
            received = torch.empty(incoming[1], dtype=incoming[2], device=self._device)
            operations.append(dist.P2POp(dist.irecv, received, incoming[0], self._device_group))
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
        return received


HOST = "127.0.0.1"
PATIENCE = timedelta(days=1)
"""A stage may wait this long for its next request; a rank that dies breaks its connections at
once.
"""
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def meeting_point(port: int = 0, world: int | None = None) -> TCPStore:
    """Return the store where the ranks of one machine meet.

    Whoever gives `world`, the number of ranks, opens it; port 0 is a free one.
    """
    return TCPStore(HOST, port, world, is_master=world is not None, wait_for_workers=False)


def device_of(rank: Rank, preferred: torch.device) -> torch.device:
    """Return a rank's device: a GPU of its own for each stage on this machine, as far as there are
    any.
    """
    if preferred.type != "cuda" or not rank.rank:
        return preferred
    return torch.device("cuda", (rank.local_rank - 1) % torch.cuda.device_count())


def join(rank: Rank, device: torch.device, store: Store | None = None) -> Channel:
    """Meet the other ranks, and return the channel to them; without a store, by what torchrun left
    in the environment.

    Stages talk by NCCL if each of them has a GPU of its own.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "gloo", store=store, rank=rank.rank, world_size=rank.world, timeout=PATIENCE
    )
    devices = [("", "")] * rank.world
    dist.all_gather_object(devices, (socket.gethostname(), str(device)))
    stages = devices[1:]
    on_gpus = all("cuda" in name for _, name in devices[1:])
    if not on_gpus or len(set(stages)) < len(stages):
        return Channel(device)
    return Channel(device, dist.new_group(list(range(1, rank.world)), backend="nccl"))
