"""Which of a pipeline's processes this one is."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rank:
    """One of `world` processes, of which rank 0 drafts and each other rank holds a stage."""

    rank: int
    world: int
    local_rank: int

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.world - 1

    @classmethod
    def from_environment(cls) -> "Rank":
        """Return the rank that the process which started this one has put into the environment."""
        rank, world, local_rank = (
            int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        )
        return cls(rank, world, local_rank)


def rank_by_torchrun() -> Rank | None:
    """Return this process's rank if torchrun started it."""
    return Rank.from_environment() if "TORCHELASTIC_RUN_ID" in os.environ else None
