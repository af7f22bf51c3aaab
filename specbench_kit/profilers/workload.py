"""The workloads of profiles: WISP's 173 configurations (Appendix C), and the steps of speculative
decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Literal

from specbench_kit.decoding.latency import Row

Part = Literal["train", "test"]
Regime = Literal["compute-bound", "memory-bound", "mixed", "step", "batched"]

FACTORS = (1.0, 3 / 4, 1 / 2, 3 / 8, 1 / 4, 3 / 16, 1 / 8, 1 / 16, 1 / 32)
"""The factors for the lengths of requests; a run takes the largest that the machine can hold and
finish.
"""
RULE = "every length is multiplied by one factor, the largest of 1, 3/4, 1/2, 3/8, 1/4, 3/16, 1/8, 1/16 and 1/32 that "
RULE += "fits the model's context, the memory and the time budget"

TOTALS = (1200, 1400, 1600, 1800, 2000)
SPLITS = {
    "single": (1.0,),
    "split-2": (1 / 2, 1 / 2),
    "split-4": (1 / 4,) * 4,
    "varied-3": (1 / 2, 3 / 10, 1 / 5),
    "varied-4": (2 / 5, 3 / 10, 1 / 5, 1 / 10),
}
NEW = (1, 5, 10, 20, 50, 100)
LENGTHS = (500, 1000, 1500, 2000)
BATCHES = (1, 4)
STEP_CONTEXTS = (64, 128, 256, 512, 1024)
STEP_BATCHES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Configuration:
    """One batch to be timed: new and cached tokens of each request.

    Logits are computed after the last token of a request that has nothing cached, else after every
    new token.
    """

    name: str
    part: Part
    regime: Regime
    rows: tuple[Row, ...]

    @property
    def longest(self) -> int:
        """The number of tokens of the longest request."""
        return max(new + cached for new, cached in self.rows)

    def scaled(self, factor: float) -> "Configuration":
        """Return the configuration with lengths times `factor`; a step keeps its number of new
        tokens.
        """
        rows = tuple(
            (
                new if self.regime == "step" else max(1, round(new * factor)),
                max(1, round(cached * factor)) * (cached > 0),
            )
            for new, cached in self.rows
        )
        return replace(self, rows=rows)


@cache
def verification(seed: int = 0) -> tuple[Configuration, ...]:
    """Return WISP's workload: 123 configurations to fit on, and 50 to test on, drawn with another
    seed.

    The paper leaves open how batches are split and mixed; here they are drawn uniformly.
    """
    compute = [
        Configuration(f"compute-{name}-{total}", "train", "compute-bound", _divide(total, shares))
        for name, shares in SPLITS.items()
        for total in TOTALS
    ]
    memory = [
        Configuration(
            f"memory-{new}-of-{length}-x{batch}",
            "train",
            "memory-bound",
            ((new, length - new),) * batch,
        )
        for new in NEW
        for length in LENGTHS
        for batch in BATCHES
    ]
    return (
        *compute,
        *memory,
        *_drawn("train", seed, 15, 15, 20),
        *_drawn("test", seed, 17, 17, 16),
    )


@cache
def steps(new: tuple[int, ...], seed: int = 0) -> tuple[Configuration, ...]:
    """Return batches of equal requests with one of the numbers `new` of new tokens, over contexts
    and batch sizes.
    """
    grid = [(n, context, batch) for n in new for context in STEP_CONTEXTS for batch in STEP_BATCHES]
    random = Random(f"steps/test/{seed}")
    drawn = [
        (
            random.choice(new),
            random.randint(STEP_CONTEXTS[0], STEP_CONTEXTS[-1]),
            random.choice(STEP_BATCHES),
        )
        for _ in range(len(grid) // 2)
    ]
    return (
        *(
            _step(f"step-{n}-after-{context}-x{batch}", "train", n, context, batch)
            for n, context, batch in grid
        ),
        *(_step(f"test-step-{number:02}", "test", *shape) for number, shape in enumerate(drawn)),
    )


@cache
def batches() -> tuple[Configuration, ...]:
    """Return steps of many requests, as servers run them; they are not measured, since such KV
    seldom fits.
    """
    return tuple(
        Configuration(
            f"batched-after-{context}-x{batch}", "test", "batched", ((1, context),) * batch
        )
        for context in (256, 1024)
        for batch in (16, 64, 128)
    )


@cache
def wide() -> tuple[Configuration, ...]:
    """Return steps of as many requests as servers batch, short enough to be measured if memory
    allows.
    """
    train = [(context, batch) for context in (64, 256) for batch in (16, 64, 128)]
    parts: tuple[tuple[Part, list[tuple[int, int]]], ...] = (
        ("train", train),
        ("test", [(128, 32), (192, 128)]),
    )
    return tuple(
        Configuration(f"wide-after-{context}-x{batch}", part, "batched", ((1, context),) * batch)
        for part, grid in parts
        for context, batch in grid
    )


def _step(name: str, part: Part, new: int, context: int, batch: int) -> Configuration:
    return Configuration(name, part, "step", ((new, context),) * batch)


def _drawn(part: Part, seed: int, compute: int, memory: int, mixed: int) -> list[Configuration]:
    random = Random(f"verification/{part}/{seed}")
    kinds: tuple[tuple[str, Regime, int], ...] = (
        ("compute", "compute-bound", compute),
        ("memory", "memory-bound", memory),
        ("mixed", "mixed", mixed),
    )
    draw = {"compute": _draw_compute, "memory": _draw_memory, "mixed": _draw_mixed}
    return [
        Configuration(f"{part}-{kind}-{number:02}", part, regime, draw[kind](random))
        for kind, regime, count in kinds
        for number in range(count)
    ]


def _draw_compute(random: Random) -> tuple[Row, ...]:
    weights = [random.uniform(0.2, 1.0) for _ in range(random.randint(1, 4))]
    return _divide(
        random.randint(TOTALS[0], TOTALS[-1]), [weight / sum(weights) for weight in weights]
    )


def _draw_memory(random: Random) -> tuple[Row, ...]:
    rows = []
    for _ in range(random.randint(1, 4)):
        new = random.randint(NEW[0], NEW[-1])
        rows.append((new, random.randint(LENGTHS[0], LENGTHS[-1]) - new))
    return tuple(rows)


def _draw_mixed(random: Random) -> tuple[Row, ...]:
    """Return a batch of prompts and verifications."""
    prompts = [(random.randint(100, 1000), 0) for _ in range(random.randint(1, 2))]
    drafts = [
        (random.randint(1, 20), random.randint(LENGTHS[0], LENGTHS[-1]))
        for _ in range(random.randint(1, 4))
    ]
    return (*prompts, *((new, length - new) for new, length in drafts))


def _divide(total: int, shares: Sequence[float]) -> tuple[Row, ...]:
    parts = [round(total * share) for share in shares[:-1]]
    return tuple((new, 0) for new in (*parts, total - sum(parts)))
