"""What a load is asked to be. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from specbench_kit.core.common_options import Out, Seed
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import DECODING, OUTPUT, RUN, SERVER, Option
from specbench_kit.deployments.base import Link
from specbench_kit.live.link_option import parse_link
from specbench_kit.serving.options import LOAD, parse_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Checked when made. Time beyond the server is that of the trace's machine and of the link that is given."""

    server: Annotated[str, Option("HOST:PORT of a `skit serve`.", SERVER)]
    trace: Annotated[Path, Option("A trace of `skit record`: what the devices draft and how long that takes.", RUN)]
    method: Annotated[str, Option("Drafting: name or name:key=value,....", RUN)] = "fixed-k"
    devices: Annotated[
        tuple[int, ...], Option("How many devices: 20, 10,20,40, or from:to:step.", LOAD, parse=parse_devices)
    ] = (8,)
    slo: Annotated[str, Option("A class (1-4: 2, 4, 6, 8 tokens/s), 7.5/s, or a mix 1:0.5,4:0.5.", LOAD)] = "2"
    duration_s: Annotated[float, Option("Seconds of each number of devices.", LOAD, flag="duration")] = 60.0
    warmup_s: Annotated[float, Option("Seconds that do not count.", LOAD, flag="warm-up")] = 10.0
    draft_s: Annotated[
        float | None, Option("Seconds that a device takes to draft a token; as recorded if left out.", DECODING)
    ] = None
    link: Annotated[
        Link | None,
        Option("Every device's, as rtt_s=0.02,jitter_s=0.002: messages take as long.", LOAD, parse=parse_link),
    ] = None
    profile: Annotated[
        str | None, Option("Of the server's time, to hold rounds against; by default this machine's own.", SERVER)
    ] = None
    server_token: Annotated[Path | None, Option("File with the token that the server asks for.", SERVER)] = None
    server_ca: Annotated[Path | None, Option("Certificates, PEM, that the server's is signed by.", SERVER)] = None
    seed: Seed = 0
    out: Out = Path("results")
    events: Annotated[bool, Option("Keep every round, response and batch as Parquet.", OUTPUT)] = False
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if min(self.devices) < 1:
            raise SkitError(f"--devices must be at least 1, not {min(self.devices)}")
        if not 0 <= self.warmup_s < self.duration_s:
            raise SkitError(f"--warm-up must end before the {self.duration_s:g} s of --duration that are measured")

    def described(self) -> dict[str, Any]:
        """What decides the outcome, as `run.json` has it."""
        return {
            "method": self.method,
            "devices": list(self.devices),
            "slo": [self.slo],
            "duration_s": self.duration_s,
            "warmup_s": self.warmup_s,
            "seed": self.seed,
            "seeds": 1,
        }
