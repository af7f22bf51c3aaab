"""Free memory, and one line in place of the kernel's silence where a model's weights do not fit
into it.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.models.executors.base import executors, held_bytes

GROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")
NO_LIMIT = 1 << 60
NARROW = "native-int8"
BESIDE_BYTES = 300e6
"""Bytes beside a pair's weights that are gone before it answers a short prompt: buffers and a
little KV.
"""


def free_bytes(device: torch.device) -> float:
    """Return the free memory of a device; on a CPU within what a container or a batch system
    allows.
    """
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    import psutil

    return float(min([psutil.virtual_memory().available, *_left_in_groups()]))


class _Files(NamedTuple):
    """The folder of a version of control groups, and the names under which it states a group's
    memory.
    """

    root: Path
    limit: str
    usage: str
    file_pages: str


OLD = _Files(
    MOUNT / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)
NEW = _Files(MOUNT, "memory.max", "memory.current", "inactive_file")


def _left_in_groups() -> Iterator[int]:
    """Yield what the limits of the process's control groups leave; pages of files count as free."""
    with suppress(OSError):
        for line in GROUPS.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            files = OLD if controllers else NEW
            group = files.root / path.strip("/")
            # Inside of a container the path is the host's, and the mount itself is the container's
            # group.
            groups = [group, *group.parents]
            yield from filter(
                None, (_left(folder, files) for folder in groups[: groups.index(files.root) + 1])
            )


def _left(group: Path, files: _Files) -> int | None:
    """Return the bytes that a group's limit leaves; None without a limit, or where nothing is to be
    read.
    """
    try:
        limit, usage = (
            int((group / name).read_text(encoding="utf-8")) for name in (files.limit, files.usage)
        )
        pages = dict(
            line.split()
            for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines()
        )
    except (OSError, ValueError):
        return None
    return limit - usage + int(pages.get(files.file_pages, 0)) if limit < NO_LIMIT else None


def require_free_memory(models: Mapping[str, tuple[Any, str | None]], device: torch.device) -> None:
    """Raise SkitError if the weights of models, each with the name of its executor, cannot be held
    beside each other.

    What is in memory already, or on another device, is not counted.
    """
    sizes = {label: held_bytes(model, executor) for label, (model, executor) in models.items()}
    needed = sum(sizes.values()) + BESIDE_BYTES
    free = free_bytes(device)
    if not any(sizes.values()) or needed <= free:
        return
    parts = " and ".join(f"{size / 1e9:.1f} GB of {label}" for label, size in sizes.items() if size)
    refused = any(executors.get(NARROW).refusal(model) for model, _ in models.values())
    narrow = sum(held_bytes(model, NARROW) for model, _ in models.values()) + BESIDE_BYTES
    helps = not refused and narrow < min(needed, free)
    smaller = f"--executor {NARROW} ({narrow / 1e9:.1f} GB, but rounded weights), " if helps else ""
    raise SkitError(
        f"{parts} do not fit into the {free / 1e9:.1f} GB of memory that are free, since {needed / 1e9:.1f} GB are "
        f"needed: end other programs, or use {smaller}a smaller model"
    )
