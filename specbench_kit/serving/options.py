"""The options of simulations, each declared once. Imports nothing heavy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from specbench_kit.core.common_options import DatasetOptions, Draft, Dtype, MaxNewTokens, Out, Target, TorchDevice
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import DEPLOYMENT, OUTPUT, RUN, Option

LOAD, ESTIMATOR, SIMULATION, RECORDING = "Load", "Estimator", "Simulation", "Recording a trace"
Objective = Literal["speed", "tpot"]
Eviction = Literal["newest", "lru"]
Backend = Literal["processes", "ray"]
Numbers = tuple[float, ...]
OWN = "own"
"""Stands for a system's own scheduler or method."""
RECORD = "record"
"""Acceptance: a trace that is recorded first."""
LENGTHS = "Where arrivals do not say: a number, or lognormal:mean=90,cv=0.62; as recorded if left out."
EACH = "Once for all, or once for each --system."


def parse_devices(text: str) -> tuple[int, ...]:
    """`20`, `10,20,40`, or `10:100:30` for 10, 40, 70 and 100."""
    try:
        return tuple(number for part in text.split(",") for number in _devices(part))
    except ValueError:
        raise SkitError(
            f"--devices takes numbers such as 20, 10,20,40 or from:to:step such as 10:100:10, not '{text}'"
        ) from None


def numbers_of(flag: str) -> Callable[[str], Numbers]:
    """Reads numbers with commas between them."""

    def parse(text: str) -> Numbers:
        try:
            return tuple(map(float, text.split(",")))
        except ValueError:
            raise SkitError(f"{flag} takes numbers with commas between them, not '{text}'") from None

    return parse


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """Lists of one entry count for every series, longer ones name one entry for each.

    `seeds` simulations of every point, from `seed` on. `kv_tokens` is the room for KV: a number, `unlimited`, or
    `auto` for what the verifier's device and model leave.
    """

    system: Annotated[tuple[str, ...], Option("A name from `skit list systems`; may be given several times.", RUN)] = (
        "wisp",
    )
    scheduler: Annotated[
        tuple[str, ...], Option(f"name or name:key=value,... from `skit list schedulers`. {EACH}", RUN)
    ] = (OWN,)
    method: Annotated[tuple[str, ...], Option(f"Drafting: name or name:key=value,.... {EACH}", RUN)] = (OWN,)
    acceptance: Annotated[
        tuple[str, ...],
        Option(
            "A trace of `skit record`, the folder of a run, iid:alpha=0.8,length=4, positions:rates=0.8-0.7-0.6, or "
            f"record. {EACH}",
            RUN,
        ),
    ] = (RECORD,)
    label: Annotated[tuple[str, ...], Option("What to call each system in the report.", RUN)] = ()
    deployment: Annotated[
        tuple[str, ...], Option(f"A name from `skit list deployments`, or a .toml file. {EACH}", DEPLOYMENT)
    ] = ("wisp",)
    fleet: Annotated[
        str | None,
        Option(
            "Devices of several kinds: deployments with shares, whose drafters and links they have, and odds: "
            "'wisp=0.5;raspberry-pi=0.5@iid:alpha=0.6,length=4'.",
            DEPLOYMENT,
        ),
    ] = None
    replaced: Annotated[
        tuple[str, ...],
        Option(
            "KEY=VALUE replaces a field of the deployments (link.rtt_s=0.04); may be given several times.",
            DEPLOYMENT,
            flag="set",
        ),
    ] = ()
    link_trace: Annotated[
        str | None,
        Option("A .csv or .jsonl of time_s, rtt_s and bytes_per_s that all links follow over and over.", DEPLOYMENT),
    ] = None
    shared_up_bytes_per_s: Annotated[
        float | None,
        Option(
            "Bytes per second of one link that all devices' messages to the server cross one after the other.",
            DEPLOYMENT,
            flag="shared-uplink",
        ),
    ] = None
    frame_s: Annotated[
        float,
        Option("Seconds that the server takes for each message, one after the other in each direction.", DEPLOYMENT),
    ] = 0.0
    turn_s: Annotated[
        float, Option("Seconds that the server takes from one verification to the next, besides.", DEPLOYMENT)
    ] = 0.0
    turn_answer_s: Annotated[float, Option("Seconds there for each answer of the first.", DEPLOYMENT)] = 0.0
    answer_s: Annotated[float, Option("Seconds by which each that still leaves holds up the next.", DEPLOYMENT)] = 0.0
    verify_cv: Annotated[
        float, Option("How verifications of one size scatter: standard deviation over mean.", DEPLOYMENT)
    ] = 0.0
    kv_tokens: Annotated[
        str,
        Option(
            "Room for KV on the server: a number of tokens, unlimited, or auto for what its memory leaves.", DEPLOYMENT
        ),
    ] = "auto"
    eviction: Annotated[
        Eviction,
        Option(
            "Whose KV makes room: the newest session's, and new ones wait; or lru, the least recently used.", DEPLOYMENT
        ),
    ] = "newest"
    max_batch: Annotated[int, Option("Requests in a batch.", DEPLOYMENT)] = 64
    slo: Annotated[
        tuple[str, ...],
        Option("A class (1-4: 2, 4, 6, 8 tokens/s), 7.5/s, or a mix 1:0.5,4:0.5; may be given several times.", LOAD),
    ] = ("2",)
    slo_scale: Annotated[
        Numbers, Option("Times the time per token that is promised: 0.8,1,1.2.", LOAD, parse=numbers_of("--slo-scale"))
    ] = (1.0,)
    objective: Annotated[
        Objective, Option("speed: tokens over the whole response; tpot: time per token after the first.", LOAD)
    ] = "speed"
    arrivals: Annotated[
        str,
        Option(
            "closed:think_s=0, poisson:rate_per_s=2, waves:rate_per_s=2,period_s=120,swing=0.8, "
            "levels:rate_per_s=2,span_s=60,cv=1, or the file of a trace (Azure, BurstGPT, Mooncake, timestamps).",
            LOAD,
        ),
    ] = "closed"
    arrivals_scale: Annotated[float, Option("Times the rate of a trace's arrivals.", LOAD)] = 1.0
    prompt_tokens: Annotated[str | None, Option(LENGTHS, LOAD)] = None
    output_tokens: Annotated[str | None, Option(LENGTHS, LOAD)] = None
    estimator_factor: Annotated[
        Numbers,
        Option(
            "Times the true time that the scheduler believes: 0.5,1,2.",
            ESTIMATOR,
            parse=numbers_of("--estimator-factor"),
        ),
    ] = (1.0,)
    estimator_noise: Annotated[
        Numbers,
        Option("Log-normal noise on each request's time: 0,0.2.", ESTIMATOR, parse=numbers_of("--estimator-noise")),
    ] = (0.0,)
    estimator_profile: Annotated[
        str | None, Option("A profile of the same model that the scheduler goes by instead.", ESTIMATOR)
    ] = None
    guard_s: Annotated[
        Numbers,
        Option(
            "Guard times of the schedulers that keep one: 0.05,0.1.",
            ESTIMATOR,
            flag="guard",
            parse=numbers_of("--guard"),
        ),
    ] = ()
    duration_s: Annotated[float, Option("SimulationOptions seconds.", SIMULATION, flag="duration")] = 300.0
    warmup_s: Annotated[float, Option("Seconds that do not count.", SIMULATION, flag="warm-up")] = 30.0
    seed: Annotated[int, Option("The first seed.", SIMULATION)] = 0
    seeds: Annotated[int, Option("Simulations of each point.", SIMULATION)] = 3
    jobs: Annotated[int, Option("Processes; -1 is one on every core.", SIMULATION)] = -1
    backend: Annotated[Backend, Option("processes of this machine, or ray for a cluster that runs.", SIMULATION)] = (
        "processes"
    )
    max_draft: Annotated[int, Option("Draft tokens recorded at every offset.", RECORDING)] = 8
    out: Out = Path("results")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions(ServingOptions):
    """A search for capacity finds the number of devices, a simulation is told it."""

    devices: Annotated[
        tuple[int, ...], Option("How many devices: 20, 10,20,40, or from:to:step.", LOAD, parse=parse_devices)
    ] = (16,)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOptions(DatasetOptions):
    """What a trace is recorded of, where no other acceptance is given: 50 prompts take about a minute on two cores."""

    limit: Annotated[int, Option("Number of prompts, drawn by --seed.", RECORDING)] = 50
    target: Target = "bundled"
    draft: Draft = "bundled"
    device: TorchDevice = "auto"
    dtype: Dtype = "auto"
    max_new_tokens: MaxNewTokens = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """What is kept of a simulation besides its numbers."""

    events: Annotated[bool, Option("Keep every round, response and batch as Parquet.", OUTPUT)] = False
    timeline: Annotated[
        str | None, Option("FROM:TO, simulated seconds of each system to keep for Perfetto.", OUTPUT)
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetOption:
    """An experiment to begin with."""

    preset: Annotated[
        str | None, Option("A published experiment from `skit list presets`; other options change it.", RUN)
    ] = None


@dataclass(frozen=True)
class CapacityRule:
    """What a run is held against; `most` devices are tried, and `resolution` is the share that may be left open."""

    epsilon: Annotated[float, Option("Share of responses that may break their SLO.", LOAD)] = 0.05
    most: Annotated[int, Option("Devices that are tried at most.", LOAD)] = 4096
    resolution: Annotated[float, Option("Share of the capacity that may be left open.", LOAD)] = 0.01
    objective: Objective = "speed"

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < 1:
            raise SkitError(f"--epsilon is a share of responses from 0 to below 1, not {self.epsilon:g}")
        if self.most < 1:
            raise SkitError(f"--most must be at least 1 device, not {self.most}")
        if not 0 <= self.resolution < 1:
            raise SkitError(f"--resolution is a share from 0 to below 1, not {self.resolution:g}")


def _devices(part: str) -> Sequence[int]:
    first, *rest = map(int, part.split(":"))
    if not rest:
        return (first,)
    last, step = rest if len(rest) == 2 else (rest[0], 1)
    if step < 1 or last < first or len(rest) > 2:
        raise ValueError
    return range(first, last + 1, step)
