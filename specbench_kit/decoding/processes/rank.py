"""Which of a pipeline's processes this one is."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank of `world` ranks, of which rank 0 drafts and the others hold a stage each."""

    rank: int
    world: int
    local_rank: int

    @property
    def stages(self) -> int:
        return self.world - 1

    @classmethod
    def given(cls) -> "Rank":
        """As whoever started this process says it in the environment."""
        rank, world, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        return cls(rank, world, local_rank)


def by_torchrun() -> Rank | None:
    """This process's place where torchrun started it."""
    return Rank.given() if "TORCHELASTIC_RUN_ID" in os.environ else None
