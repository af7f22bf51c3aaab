"""The options of `skit plan`, each declared once. Imports nothing heavy."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isclose, isfinite
from pathlib import Path
from typing import Annotated

from specbench_kit.core.common_options import Out, Resume
from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.foreign_file import StatedFile
from specbench_kit.core.option import DEPLOYMENT, FIRST, MODELS, RUN, Option
from specbench_kit.serving.figures import FEWEST_SEEDS
from specbench_kit.serving.options import SIMULATION, Jobs, OnBackend

LOAD = "Load"
SEARCH = "Search"
METHODS = (
    "fixed-k:k=1",
    "fixed-k:k=2",
    "fixed-k:k=3",
    "fixed-k:k=4",
    "fixed-k:k=6",
    "threshold:threshold=0.5,max_draft=8",
    "threshold:threshold=0.7,max_draft=8",
)
SCHEDULERS = ("wisp-promise", "edf:by=promise", "fcfs")
LINK_FILES = (".csv", ".jsonl")
_TIME = re.compile(r"(\d+\.?\d*|\.\d+)\s*(ms|s)?")


def parse_link(text: str) -> float | StatedFile:
    """Return the seconds in a round trip such as 40ms or 0.04s, or the file of a recorded link."""
    match = _TIME.fullmatch(text.strip())
    if match is not None:
        number, unit = float(match[1]), match[2]
        if unit is None:
            ways = (
                f"{number:g}ms or {number / 1e3:g}s"
                if number >= 1
                else f"{1e3 * number:g}ms or {number:g}s"
            )
            raise SkitError(f"--link {text.strip()} has no unit: write {ways}")
        return number * (1e-3 if unit == "ms" else 1.0)
    file = StatedFile.parse(text)
    if file.path.suffix in LINK_FILES or file.options:
        return file
    raise SkitError(
        f"--link takes a round trip such as 40ms or 0.04s, or a {' or '.join(LINK_FILES)} file of a recorded link, "
        f"or any file with what it is, as FILE:format=mahimahi, not '{text}'"
    )


def parse_classes(text: str) -> tuple[tuple[float, float], ...]:
    """Return the promised tokens per second of each class with the share of devices in it, from
    `4:0.5,8:0.5`.
    """
    classes = []
    for part in text.split(","):
        speed, colon, share = part.partition(":")
        try:
            classes.append((float(speed), float(share) if colon else 1.0))
        except ValueError:
            raise SkitError(
                f"--class takes tokens per second with the share of devices, as in 4:0.5,8:0.5, not '{part}'"
            ) from None
    speeds = [speed for speed, _ in classes]
    shares = [share for _, share in classes]
    require(
        all(isfinite(speed) and speed > 0 for speed in speeds),
        f"--class: every speed must be above 0, in '{text}'",
    )
    require(len(set(speeds)) == len(speeds), f"--class: '{text}' names a speed twice")
    require(
        all(share > 0 for share in shares) and isclose(sum(shares), 1, abs_tol=1e-6),
        f"--class: the shares must be above 0 and add up to 1, as in 4:0.5,8:0.5; in '{text}' they are {sum(shares):g}",
    )
    return tuple(classes)


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names between commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def whole_numbers(flag: str) -> Callable[[str], tuple[int, ...]]:
    """Return a parser of whole numbers from 1 up with commas between them, whose errors name the
    flag.
    """

    def parse(text: str) -> tuple[int, ...]:
        parts = text.split(",")
        if not all(part.strip().isdigit() and int(part) for part in parts) or len(set(parts)) < len(
            parts
        ):
            raise SkitError(
                f"{flag} takes different whole numbers from 1 up, as in 1,2,4, not '{text}'"
            )
        return tuple(map(int, parts))

    return parse


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The devices and what is promised to them, and what a fleet may be made of."""

    devices: Annotated[int, Option("Number of devices that request at the same time.", LOAD), FIRST]
    classes: Annotated[
        tuple[tuple[float, float], ...],
        Option(
            "Tokens per second promised to each class, with its share of the devices: 4:0.5,8:0.5.",
            LOAD,
            flag="class",
            parse=parse_classes,
        ),
        FIRST,
    ]
    link: Annotated[
        float | StatedFile | None,
        Option(
            "Round trip between device and server, such as 40ms, or a recorded link (.csv or .jsonl, as --link-trace "
            "of skit simulate takes it).",
            DEPLOYMENT,
            parse=parse_link,
        ),
        FIRST,
    ] = None
    gpus: Annotated[
        tuple[str, ...],
        Option(
            "Cards to choose from, with commas: names such as a100, h100, h200 and l40s, or .toml files.",
            SEARCH,
            parse=parse_names,
        ),
        FIRST,
    ] = ("a100", "h100", "l40s")
    cards: Annotated[
        tuple[int, ...],
        Option(
            "Numbers of cards that may hold one copy of the model.",
            SEARCH,
            parse=whole_numbers("--cards"),
        ),
        FIRST,
    ] = (1, 2, 4, 8)
    stages: Annotated[
        tuple[int, ...],
        Option(
            "Numbers of pipeline stages that these cards may form where the model fits on none of them alone; the "
            "cards of a stage share its layers (tensor parallel).",
            SEARCH,
            parse=whole_numbers("--stages"),
        ),
    ] = (1, 2, 4)
    bits: Annotated[
        tuple[int, ...] | None,
        Option(
            "Bits per weight to choose from, such as 16,8,4; the default is the target's own, since others change its "
            "outputs.",
            SEARCH,
            parse=whole_numbers("--bits"),
        ),
        FIRST,
    ] = None
    methods: Annotated[
        tuple[str, ...],
        Option(
            "Drafting method to choose from; may be given several times.", SEARCH, flag="method"
        ),
    ] = METHODS
    schedulers: Annotated[
        tuple[str, ...],
        Option("Scheduler to choose from; may be given several times.", SEARCH, flag="scheduler"),
    ] = SCHEDULERS
    max_batch: Annotated[
        tuple[int, ...],
        Option(
            "Largest batches to choose from.",
            SEARCH,
            parse=whole_numbers("--max-batch"),
        ),
    ] = (32, 64, 128, 256, 512)
    prices: Annotated[
        Path | None,
        Option(
            "File (.toml) of prices per hour with their dates and sources; the default is the kit's list.",
            SEARCH,
        ),
    ] = None
    target: Annotated[
        str, Option("Architecture card of the target model, or a .toml file.", MODELS), FIRST
    ] = "qwen3-32b"
    draft: Annotated[
        str, Option("Architecture card of the draft model, for co-located drafting.", MODELS)
    ] = "qwen3-0.6b"
    acceptance: Annotated[
        str,
        Option(
            "Source of acceptance: a trace, the folder of a run, or iid:alpha=0.8,length=4.", RUN
        ),
        FIRST,
    ] = "qwen2.5-coder"
    deployment: Annotated[
        str,
        Option(
            "Deployment whose drafting devices and link are used; its verifier is replaced.",
            DEPLOYMENT,
        ),
        FIRST,
    ] = "wisp-roofline"
    prompt_tokens: Annotated[
        str | None, Option("Prompt length in tokens; the default is as recorded.", LOAD)
    ] = None
    output_tokens: Annotated[
        str | None, Option("Output length in tokens; the default is as recorded.", LOAD)
    ] = None
    think_s: Annotated[
        float, Option("Seconds from a response to the device's next request.", LOAD, flag="think")
    ] = 0.0
    epsilon: Annotated[
        float, Option("Share of responses that may fall short of their promise.", LOAD)
    ] = 0.05
    duration_s: Annotated[
        float, Option("Simulated seconds of each try, at most.", SIMULATION, flag="duration")
    ] = 300.0
    warmup_s: Annotated[
        float,
        Option(
            "Seconds at the start of a try that no metric includes, at most.",
            SIMULATION,
            flag="warm-up",
        ),
    ] = 100.0
    seed: Annotated[int, Option("Seed of the first simulation.", SIMULATION)] = 0
    seeds: Annotated[int, Option("Number of seeds behind the verdict; at least 5.", SIMULATION)] = (
        FEWEST_SEEDS
    )
    jobs: Jobs = -1
    backend: OnBackend = "processes"
    resume: Resume = False
    out: Annotated[Out, FIRST] = Path("results")

    def __post_init__(self) -> None:
        require(self.devices >= 1, f"--devices must be at least 1, not {self.devices}")
        require(
            self.seeds >= FEWEST_SEEDS,
            f"--seeds must be at least {FEWEST_SEEDS} for a verdict, not {self.seeds}",
        )
        require(self.jobs != 0, "--jobs must be a number of processes, or -1 for one on every core")
        require(
            0 < self.epsilon < 1,
            f"--epsilon is a share of responses between 0 and 1, not {self.epsilon:g}",
        )
        require(
            0 <= self.think_s < float("inf"),
            f"--think must be seconds from 0 up, not {self.think_s:g}",
        )
        bits = self.bits or ()
        require(
            set(bits) <= {4, 8, 16},
            f"--bits must be among 16, 8 and 4, not {', '.join(map(str, bits))}",
        )
        require(bool(self.gpus), "--gpus names no card")

    @property
    def slo(self) -> str:
        """The promise as the other commands write it: `4/s:0.5,8/s:0.5`."""
        return ",".join(f"{speed:g}/s:{share:g}" for speed, share in self.classes)
