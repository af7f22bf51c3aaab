"""How the ranks of a pipeline find each other."""

import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from specbench_kit.decoding.processes.channel import Channel
from specbench_kit.decoding.processes.rank import Rank

HOST = "127.0.0.1"
PATIENCE = timedelta(days=1)
"""A stage may wait this long for its next request; a rank that dies breaks its connections at once."""
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def meeting_point(port: int = 0, world: int | None = None) -> TCPStore:
    """Return the store where the ranks of one machine meet.

    Whoever gives `world`, the number of ranks, opens it; port 0 is a free one.
    """
    return TCPStore(HOST, port, world, is_master=world is not None, wait_for_workers=False)


def device_of(rank: Rank, preferred: torch.device) -> torch.device:
    """Return a rank's device: a GPU of its own for each stage on this machine, as far as there are any."""
    if preferred.type != "cuda" or not rank.rank:
        return preferred
    return torch.device("cuda", (rank.local_rank - 1) % torch.cuda.device_count())


def join(rank: Rank, device: torch.device, store: Store | None = None) -> Channel:
    """Meet the other ranks, and return the channel to them; without a store, by what torchrun left in the environment.

    Stages talk by NCCL if each of them has a GPU of its own.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo", store=store, rank=rank.rank, world_size=rank.world, timeout=PATIENCE)
    devices = [("", "")] * rank.world
    dist.all_gather_object(devices, (socket.gethostname(), str(device)))
    stages, on_gpus = devices[1:], all("cuda" in name for _, name in devices[1:])
    if not on_gpus or len(set(stages)) < len(stages):
        return Channel(device)
    return Channel(device, dist.new_group(list(range(1, rank.world)), backend="nccl"))
