"""The options of simulations, each declared once. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from specbench_kit.core.common_options import (
    DatasetName,
    DatasetOptions,
    Draft,
    Dtype,
    MaxNewTokens,
    Out,
    Resume,
    Target,
    TorchDevice,
)
from specbench_kit.core.errors import require
from specbench_kit.core.option import (
    DEPLOYMENT,
    FIRST,
    OUTPUT,
    RUN,
    Option,
    OptionValues,
    WithoutEffect,
)
from specbench_kit.core.without_effect import beside
from specbench_kit.serving.figures import FEWEST_SEEDS
from specbench_kit.serving.number_lists import Numbers, counts_of, numbers_of, parse_devices

LOAD = "Load"
ESTIMATOR = "Estimator"
SIMULATION = "Simulation"
RECORDING = "Recording a trace"
Objective = Literal["speed", "tpot"]
"""What a promised speed is measured by: tokens over the whole response, or time per token after the
first.
"""
Eviction = Literal["newest", "lru"]
Backend = Literal["processes", "ray"]
Jobs = Annotated[int, Option("Number of processes; -1 uses every core.", SIMULATION)]
OnBackend = Annotated[
    Backend,
    Option(
        "Where simulations run: processes of this machine, or a running ray cluster.", SIMULATION
    ),
]
OWN = "own"
"""Names a system's own scheduler or method."""
DEFAULT_ROUTER = "least-work"
RECORD = "record"
"""Names a trace that is recorded first, as acceptance."""
LENGTHS = "length in tokens, if the arrivals state none: a number, or lognormal:mean=90,cv=0.62. Default: as recorded."
EACH = "Given once for all systems, or once per --system."


def _one_server(given: OptionValues) -> str:
    servers: Any = given.get("servers") or ("1",)
    return "with one server" if set(servers) <= {"1"} else ""


ONE_SERVER = WithoutEffect(
    _one_server, "there is nothing to choose; give --servers, or leave it out"
)
BY_DEVICES = WithoutEffect(beside("devices"), "both say how many devices there are; leave out one")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """Options of simulations and of searches for capacity.

    Lists with one entry count for every series, longer ones name one entry for each. `seeds`
    simulations of every point use the seeds from `seed` on. `kv_tokens` is the room for KV: a
    number, `unlimited`, or `auto` for what the verifier's device and model leave.
    """

    system: Annotated[
        tuple[str, ...],
        Option("System: a name from `skit list systems`; may be given several times.", RUN),
    ] = ("wisp",)
    scheduler: Annotated[
        tuple[str, ...],
        Option(f"Scheduler: name or name:key=value,... from `skit list schedulers`. {EACH}", RUN),
        FIRST,
    ] = (OWN,)
    method: Annotated[
        tuple[str, ...],
        Option(
            f"Drafting method: name or name:key=value,... from `skit list methods`. {EACH}", RUN
        ),
        FIRST,
    ] = (OWN,)
    acceptance: Annotated[
        tuple[str, ...],
        Option(
            "Source of acceptance: a trace of `skit record`, the folder of a run, iid:alpha=0.8,length=4, "
            "positions:rates=0.8-0.7-0.6, curve:at=100-34000,rates=0.85-0.5 (by context), golden:NAME,k=4 (a published "
            "mean from `skit list golden`), or 'record': the "
            "recorded pair qwen2.5-coder, or a trace that is recorded first where an option says what to record. "
            f"{EACH}",
            RUN,
        ),
        FIRST,
    ] = (RECORD,)
    label: Annotated[tuple[str, ...], Option("Name of each system in the report.", RUN)] = ()
    deployment: Annotated[
        tuple[str, ...],
        Option(
            "Deployment: a name from `skit list deployments`, a .toml file, or a server in one line, as in "
            f"server:gpu=h100,target=llama3.1-8b,drafter=eagle3. {EACH}",
            DEPLOYMENT,
        ),
        FIRST,
    ] = ("wisp-roofline",)
    fleet: Annotated[
        str | None,
        Option(
            "Several kinds of devices: deployments (for drafter and link) with their shares and, after @, their "
            "acceptance: 'wisp=0.5;raspberry-pi=0.5@iid:alpha=0.6,length=4'.",
            DEPLOYMENT,
        ),
        FIRST,
    ] = None
    servers: Annotated[
        tuple[str, ...],
        Option(
            "Verification servers: how many with the deployment's verifier, or one deployment for each verifier, as in "
            "adaspec-7b-a100=2,adaspec-7b-l40, or cards that share the deployment's model: 4xh100,2xa100=2 by "
            f"tensor parallelism, 8xh100/pp4 in four pipeline stages of two cards. {EACH}",
            DEPLOYMENT,
        ),
    ] = ("1",)
    router: Annotated[
        tuple[str, ...],
        Option(
            f"Router, which chooses the server of each response: name or name:key=value,... from `skit list routers`. "
            f"{EACH}",
            DEPLOYMENT,
        ),
        ONE_SERVER,
    ] = (DEFAULT_ROUTER,)
    outage: Annotated[
        tuple[str, ...],
        Option(
            "A server that is away: SERVER:FROM:TO, its number and simulated seconds, as in 2:60:90. May be given "
            "several times.",
            DEPLOYMENT,
        ),
    ] = ()
    replaced: Annotated[
        tuple[str, ...],
        Option(
            "Change a field of the deployments: link.rtt_s=0.04. May be given several times.",
            DEPLOYMENT,
            flag="set",
        ),
    ] = ()
    link_trace: Annotated[
        str | None,
        Option(
            "File of a recorded link that all links follow, again and again: columns rtt_s or rtt_ms, time_s, and "
            "bytes_per_s or mbit_per_s (.csv or .jsonl); a column of round trips in seconds (FILE:unit=ms in "
            "others); or a trace of mahimahi or Pensieve (FILE:format=mahimahi).",
            DEPLOYMENT,
        ),
    ] = None
    shared_up_bytes_per_s: Annotated[
        float | None,
        Option(
            "Bandwidth, in bytes per second, of one link that carries all messages to the server one after the other; "
            "unlimited by default.",
            DEPLOYMENT,
            flag="shared-uplink",
        ),
    ] = None
    frame_s: Annotated[
        float,
        Option(
            "Server message cost, in seconds; the messages of each direction are processed serially.",
            DEPLOYMENT,
        ),
    ] = 0.0
    turn_s: Annotated[
        float, Option("Fixed gap between two verifications, in seconds.", DEPLOYMENT)
    ] = 0.0
    turn_answer_s: Annotated[
        float,
        Option(
            "Gap between verifications added per response of the previous batch, in seconds.",
            DEPLOYMENT,
        ),
    ] = 0.0
    answer_s: Annotated[
        float,
        Option(
            "Delay added to the next verification per response still being sent, in seconds.",
            DEPLOYMENT,
        ),
    ] = 0.0
    verify_cv: Annotated[
        float,
        Option("Random variation of the verification time: standard deviation / mean.", DEPLOYMENT),
    ] = 0.0
    kv_tokens: Annotated[
        str,
        Option(
            "Size of the server's KV cache: a number of tokens, unlimited, or auto (the memory that weights leave).",
            DEPLOYMENT,
        ),
    ] = "auto"
    eviction: Annotated[
        Eviction,
        Option(
            "Session to evict when the KV cache is full: newest (the last one admitted), or lru (the least "
            "recently used).",
            DEPLOYMENT,
        ),
    ] = "newest"
    max_batch: Annotated[int, Option("Largest number of requests in a batch.", DEPLOYMENT)] = 64
    slo: Annotated[
        tuple[str, ...],
        Option(
            "Promised tokens per second, such as 7.5, WISP's class-1, class-2, class-3 or class-4 (2, 4, 6 or 8 "
            "tokens/s), or a mix with shares, 4:0.5,8:0.5. May be given several times.",
            LOAD,
        ),
        FIRST,
    ] = ("4",)
    slo_scale: Annotated[
        Numbers,
        Option(
            "Factors on the promised time per token, such as 0.8,1,1.2.",
            LOAD,
            parse=numbers_of("--slo-scale"),
        ),
    ] = (1.0,)
    objective: Annotated[
        Objective,
        Option(
            "Kind of promise: speed (tokens per second of the response) or tpot (time per token after the first).",
            LOAD,
        ),
    ] = "speed"
    arrivals: Annotated[
        str,
        Option(
            "Arrivals of requests: closed:think_s=0 (with leave=0.05,away_s=60 for devices that go and come), "
            "poisson:rate_per_s=2, waves:rate_per_s=2,period_s=120,swing=0.8, "
            "levels:rate_per_s=2,span_s=60,cv=1, a bundled trace (adaspec-conv, adaspec-code or adaspec-mooncake), or "
            "the file of a trace (Azure, BurstGPT, Mooncake, Qwen-Bailian), with FILE:unit=ms where its columns do not "
            "say the unit of times; :from_s=100 replays one from that second on.",
            LOAD,
        ),
        FIRST,
    ] = "closed"
    prompt_tokens: Annotated[str | None, Option(f"Prompt {LENGTHS}", LOAD)] = None
    output_tokens: Annotated[str | None, Option(f"Output {LENGTHS}", LOAD)] = None
    estimator_factor: Annotated[
        Numbers,
        Option(
            "Estimator bias: predicted / true time of a batch, such as 0.5,1,2.",
            ESTIMATOR,
            parse=numbers_of("--estimator-factor"),
        ),
    ] = (1.0,)
    estimator_noise: Annotated[
        Numbers,
        Option(
            "Log-normal noise on the estimate of each request's time, such as 0,0.2.",
            ESTIMATOR,
            parse=numbers_of("--estimator-noise"),
        ),
    ] = (0.0,)
    estimator_profile: Annotated[
        str | None,
        Option(
            "Latency profile that the scheduler estimates with, instead of the deployment's; of the same model.",
            ESTIMATOR,
        ),
    ] = None
    guard_s: Annotated[
        Numbers,
        Option(
            "Guard times in seconds, such as 0.05,0.1, for schedulers that have one.",
            ESTIMATOR,
            flag="guard",
            parse=numbers_of("--guard"),
        ),
    ] = ()
    duration_s: Annotated[
        float, Option("Simulated time in seconds.", SIMULATION, flag="duration")
    ] = 300.0
    warmup_s: Annotated[
        float, Option("Seconds at the start that no metric includes.", SIMULATION, flag="warm-up")
    ] = 30.0
    seed: Annotated[int, Option("Seed of the first simulation.", SIMULATION)] = 0
    seeds: Annotated[
        int,
        Option(
            "Number of simulations of each point, with consecutive seeds; a verdict between systems takes at least "
            f"{FEWEST_SEEDS}.",
            SIMULATION,
        ),
    ] = FEWEST_SEEDS
    jobs: Jobs = -1
    backend: OnBackend = "processes"
    resume: Resume = False
    max_draft: Annotated[
        int, Option("Number of draft tokens recorded at every position.", RECORDING)
    ] = 8
    out: Annotated[Out, FIRST] = Path("results")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions(ServingOptions):
    """Options of simulations, whose load is given: the number of devices, or the rate of arrivals.

    A search for capacity finds them.
    """

    devices: Annotated[
        tuple[int, ...],
        Option(
            "Number of devices: 20, 10,20,40, or from:to:step. Default: 16 in a closed loop; where requests arrive "
            "at a rate or at recorded times, as many as they need.",
            LOAD,
            parse=parse_devices,
        ),
        FIRST,
    ] = ()
    concurrency: Annotated[
        tuple[int, ...],
        Option(
            "Requests in flight, as load generators say: so many devices, each of which requests again when it is "
            "answered.",
            LOAD,
            parse=counts_of("--concurrency"),
        ),
        BY_DEVICES,
    ] = ()
    arrivals_scale: Annotated[
        float, Option("Factor on the arrival rate of a trace file.", LOAD)
    ] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOptions(DatasetOptions):
    """Options of the trace that is recorded if no acceptance is given; 50 prompts take minutes on
    two cores.
    """

    dataset: DatasetName = "gsm8k"  # no mark: what is recorded first matters less than a load
    limit: Annotated[int, Option("Number of prompts, drawn with --seed.", RECORDING)] = 50
    minutes: Annotated[
        float | None,
        Option(
            "Minutes of recording after which no further prompt begins; what is recorded by then is used.",
            RECORDING,
        ),
    ] = None
    target: Target = "auto"
    draft: Draft = "auto"
    device: TorchDevice = "auto"
    dtype: Dtype = "auto"
    max_new_tokens: MaxNewTokens = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """Options of what is stored of a simulation besides its metrics."""

    events: Annotated[bool, Option("Store every round, response and batch as Parquet.", OUTPUT)] = (
        False
    )
    timeline: Annotated[
        str | None,
        Option(
            "Time window FROM:TO, in simulated seconds, to store as a timeline for Perfetto.",
            OUTPUT,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetOption:
    """A published experiment to start from."""

    preset: Annotated[
        str | None,
        Option("A published experiment from `skit list presets`; other options change it.", RUN),
        FIRST,
    ] = None


@dataclass(frozen=True)
class CapacityRule:
    """The rule by which a load counts as served, and the extent of the search for capacity."""

    epsilon: Annotated[
        float,
        Option("Share of responses that may violate their SLO.", LOAD),
        Meta(description="share of responses that may violate their SLO"),
    ] = 0.05
    most: Annotated[
        int,
        Option("Largest number of devices to try.", LOAD),
        Meta(
            description="largest load that is tried: devices, or hundredths of a request per second"
        ),
    ] = 4096
    resolution: Annotated[
        float,
        Option("Relative precision of the result, such as 0.01.", LOAD),
        Meta(description="relative precision of the capacity"),
    ] = 0.01
    objective: Annotated[
        Objective,
        Meta(
            description="what a promised speed is measured by: 'speed', tokens over the whole response, or "
            "'tpot', time per token after the first"
        ),
    ] = "speed"

    def __post_init__(self) -> None:
        epsilon = self.epsilon
        resolution = self.resolution
        require(
            0 <= epsilon < 1,
            f"--epsilon is a share of responses from 0 to below 1, not {epsilon:g}",
        )
        require(self.most >= 1, f"--most must be at least 1 device, not {self.most}")
        require(
            0 <= resolution < 1, f"--resolution is a share from 0 to below 1, not {resolution:g}"
        )
