"""How the ranks of a pipeline find each other."""

import socket
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from specbench_kit.decoding.processes.channel import Channel
from specbench_kit.decoding.processes.rank import Rank

HOST = "127.0.0.1"
PATIENCE = timedelta(days=1)
"""A stage may wait that long for its next request; a rank that dies breaks its connections at once."""
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def meeting_place(port: int = 0, world: int | None = None) -> Any:
    """Where ranks of one machine meet; the one that says how many they are opens it, at a free port."""
    return TCPStore(HOST, port, world, is_master=world is not None, wait_for_workers=False)


def device_of(place: Rank, wanted: torch.device) -> torch.device:
    """A GPU of its own for every stage of this machine, as far as there are any."""
    if wanted.type != "cuda" or not place.rank:
        return wanted
    return torch.device("cuda", (place.local_rank - 1) % torch.cuda.device_count())


def join(place: Rank, device: torch.device, store: Any = None) -> Channel:
    """Meet the other ranks; those that hold stages talk by NCCL if each of them has a GPU of its own."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.world, timeout=PATIENCE)
    found: list[Any] = [None] * place.world
    dist.all_gather_object(found, (socket.gethostname(), str(device)))
    stages, on_gpus = found[1:], all("cuda" in name for _, name in found[1:])
    if not on_gpus or len(set(stages)) < len(stages):
        return Channel(device)
    return Channel(device, dist.new_group(list(range(1, place.world)), backend="nccl"))
