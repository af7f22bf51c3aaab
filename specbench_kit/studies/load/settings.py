"""The settings of `skit load`. Imports nothing heavy."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, NamedTuple

from specbench_kit.core.common_options import Out, Seed
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import DECODING, FIRST, OUTPUT, RUN, SERVER, Option, OptionValues
from specbench_kit.core.slo_names import slo_of_option
from specbench_kit.live.connection_options import ConnectionOptions, parse_link
from specbench_kit.runs.deployment import Link
from specbench_kit.serving.number_lists import Numbers, numbers_of, parse_devices
from specbench_kit.serving.options import LOAD


class LoadPoint(NamedTuple):
    """One load: its devices and the requests per second; None if devices request again after each
    response.
    """

    devices: int
    rate: float | None

    def __str__(self) -> str:
        return f"{self.devices} devices" + (
            "" if self.rate is None else f", {self.rate:g} requests/s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings(ConnectionOptions):
    """The checked options of `skit load`."""

    server: Annotated[str, Option("HOST:PORT of a `skit serve`.", SERVER), FIRST]
    trace: Annotated[
        Path,
        Option(
            "Trace of `skit record`: the drafts of the devices, and how long a draft takes.", RUN
        ),
        FIRST,
    ]
    method: Annotated[
        str, Option("Method that the devices draft with: name or name:key=value,....", RUN), FIRST
    ] = "fixed-k"
    devices: Annotated[
        tuple[int, ...],
        Option(
            "Numbers of devices, one load each: 20, 10,20,40, or from:to:step.",
            LOAD,
            parse=parse_devices,
        ),
        FIRST,
    ] = (8,)
    rate: Annotated[
        Numbers,
        Option(
            "Requests per second over all devices, at random times (Poisson), one load each, as in 0.5,1,2. By default "
            "a device requests again as soon as it has its response.",
            LOAD,
            parse=numbers_of("--rate"),
        ),
        FIRST,
    ] = ()
    slo: Annotated[
        str,
        Option(
            "Promised tokens per second (7.5), a class (class-1 to class-4 for 2, 4, 6, 8), or a mix (4:0.5,8:0.5).",
            LOAD,
        ),
        FIRST,
    ] = "4"
    duration_s: Annotated[
        float, Option("Seconds of each load, warm-up included.", LOAD, flag="duration"), FIRST
    ] = 60.0
    warmup_s: Annotated[
        float, Option("Seconds at the start that do not count.", LOAD, flag="warm-up")
    ] = 10.0
    baseline: Annotated[
        bool,
        Option(
            "Also put the server under every load with speculation off, in turns, and say from which load on "
            "speculation makes the time between tokens longer. Takes twice as long.",
            LOAD,
        ),
        FIRST,
    ] = False
    draft_s: Annotated[
        float | None,
        Option(
            "Seconds that a device drafts a token; by default as recorded in the trace.", DECODING
        ),
    ] = None
    link: Annotated[
        Link | None,
        Option(
            "Emulate a network link per device, as in rtt_s=0.02,jitter_s=0.002 (seconds); none by default.",
            LOAD,
            parse=parse_link,
        ),
        FIRST,
    ] = None
    profile: Annotated[
        str | None,
        Option(
            "Latency profile of the server to compare with; by default one that was measured on this machine.",
            SERVER,
        ),
    ] = None
    seed: Seed = 0
    out: Annotated[Out, FIRST] = Path("results")
    events: Annotated[bool, Option("Save every round, response and batch as Parquet.", OUTPUT)] = (
        False
    )
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.require_connection_options()
        if min(self.devices) < 1:
            raise SkitError(f"--devices must be at least 1, not {min(self.devices)}")
        if not all(0 < rate < inf for rate in self.rate):
            raise SkitError("--rate must be above 0 requests per second, and finite")
        if not 0 <= self.warmup_s < self.duration_s:
            raise SkitError(
                f"--warm-up must end before the {self.duration_s:g} s of --duration that are measured"
            )

    @property
    def points(self) -> list[LoadPoint]:
        """The loads, in the order in which they run."""
        return [
            LoadPoint(devices, rate) for devices in self.devices for rate in self.rate or (None,)
        ]

    @property
    def promise(self) -> str:
        """The promised speed as results name it."""
        return slo_of_option(self.slo)

    def described(self) -> OptionValues:
        """Return the settings that decide the result, as `run.json` holds them."""
        return {
            "method": self.method,
            "devices": list(self.devices),
            **({"rate": list(self.rate)} if self.rate else {}),
            "slo": [self.promise],
            "duration_s": self.duration_s,
            "warmup_s": self.warmup_s,
            **({"baseline": True} if self.baseline else {}),
            "seed": self.seed,
            "seeds": 1,
        }
