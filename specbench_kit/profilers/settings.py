"""The settings of a profiling run, as the command line gives them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from specbench_kit.core.common_options import Dtype, Force, Out, Resume, Seed, TorchDevice
from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import FIRST, MODELS, OUTPUT, RUN, Option, options_in
from specbench_kit.profilers.roofline import Host
from specbench_kit.profilers.silicon import KernelEngine
from specbench_kit.profilers.software import KERNELS

OF_MEASURED = ("budget_s", "runs", "seed", "resume", "force")
"""Options that a profile derived from a data sheet does not have."""
OF_DERIVED = (
    "origin",
    "engine",
    "software",
    "cards",
    "interconnect",
    "expert_parallel",
    "host_s",
    "host_request_s",
    "overlap",
)
"""Options that a measured profile does not have."""

Origin = Literal["auto", "silicon", "data-sheet"]
AUTO, SILICON, DATA_SHEET = get_args(Origin)
"""Sources of derived times: measured kernels if the kit has them, measured kernels, or the law from
a data sheet.
"""

Budget = Annotated[
    float,
    Option(
        "Seconds of timing after the models are loaded; requests get shorter to fit.",
        RUN,
        flag="budget",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """The settings that both kinds of profiling runs share; raises SkitError for those that
    contradict each other.

    `gpu` names a device card, `device` a device of torch; `draft` is set if a pair is profiled. Profiles are saved to
    the user's folder, or a verifier's to the file `save_to` and a pair's to the folder `save_to`. Those that were
    measured on a disturbed machine are marked, and used only where they are named unless `force` is given.
    """

    target: Annotated[
        str,
        Option(
            "Target model: 'auto' for the best pair that was fetched, a pair from `skit list models`, a folder, a hub "
            "id, a .gguf file, or an architecture card with random weights (a name such as qwen3-32b, or a .toml "
            "file).",
            MODELS,
        ),
        FIRST,
    ] = "auto"
    draft: str | None = None
    gpu: str | None = None
    require_measured: bool = False
    origin: Origin = AUTO
    engine: KernelEngine = "vllm"
    software: str = KERNELS
    cards: int = 1
    interconnect: str | None = None
    expert_parallel: bool = False
    host_s: float | None = None
    host_request_s: float | None = None
    overlap: float = 0.0
    device: Annotated[TorchDevice, FIRST] = "auto"
    dtype: Dtype = "auto"
    budget_s: Annotated[Budget, FIRST] = 420.0
    runs: Annotated[int, Option("Number of passes through the workload.", RUN), FIRST] = 3
    seed: Seed = 0
    resume: Annotated[Resume, FIRST] = False
    out: Annotated[Out, FIRST] = Path("results")
    name: Annotated[
        str | None,
        Option(
            "Name of the profile; the default is made of model, device, dtype and role.", OUTPUT
        ),
        FIRST,
    ] = None
    save_to: Path | None = None
    force: Force = False
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.budget_s > 0:
            raise SkitError(f"--budget must be a number of seconds above 0, not {self.budget_s:g}")
        if self.runs < 1:
            raise SkitError(f"--runs must be at least 1, not {self.runs}")
        if self.seed < 0:
            raise SkitError(f"--seed must not be negative, but is {self.seed}")
        if self.cards < 1 or (self.cards > 1) != (self.interconnect is not None):
            raise SkitError(
                "--cards above 1 needs the --interconnect between the cards, and a single card has none"
            )
        if self.expert_parallel and (self.cards < 2 or self.origin == SILICON):
            raise SkitError(
                "--expert-parallel needs several --cards, and goes by the analytic model: leave out --from silicon"
            )
        given = [
            option.shown_name(field.name)
            for field, _, option in options_in(type(self))
            if field.name in OF_DERIVED and getattr(self, field.name) != field.default
        ]
        if self.gpu is None and given:
            raise SkitError(
                f"{' and '.join(given)} applies to a derived profile only: name its --gpu"
            )
        if self.origin == SILICON and not self.is_default_software:
            raise SkitError(
                "--software is for profiles of the analytic model: leave it out beside --from silicon"
            )
        if self.origin == DATA_SHEET and not self.is_default_engine:
            raise SkitError(
                "--engine is for measured kernels: leave it out beside --from data-sheet"
            )
        # Which refuses what no host can take.
        Host(self.host_s or 0.0, self.host_request_s or 0.0, self.overlap)
        if self.name is not None and (not self.name or set(self.name) & set("/\\:=,")):
            raise SkitError(
                f"--name '{self.name}' cannot be a file's name: use letters, digits, dots and dashes"
            )
        if self.gpu is not None and self.device != "auto":
            raise SkitError("--gpu and --device both say where to run: give one of them")
        if self.draft is None and self.save_to is not None and self.save_to.suffix != ".toml":
            raise SkitError(f"--save-to must name a .toml file, not {self.save_to}")

    def require_options_of(self, *, measured: bool) -> None:
        """Raise SkitError for options that only the other kind of profile has: measured here, or
        derived.

        Which kind it is shows when the device has been looked for.
        """
        options, reason = (
            (OF_DERIVED, "this machine has that device, which is measured")
            if measured
            else (
                OF_MEASURED,
                "this machine has no such device, and a data sheet gives the same profile every time",
            )
        )
        for field, _, option in options_in(type(self)):
            is_given = getattr(self, field.name) != field.default
            require(
                field.name not in options or not is_given,
                f"{option.shown_name(field.name)} has no effect: {reason}; leave it out",
            )

    @property
    def is_default_software(self) -> bool:
        """True if no software is named whose speed a derived profile is to assume."""
        return self.software == KERNELS

    @property
    def is_default_engine(self) -> bool:
        """True if no other engine's kernels are asked for."""
        return self.engine == "vllm"

    @property
    def command(self) -> str:
        """The sub-command that has these settings."""
        return "profile-verifier" if self.draft is None else "profile-drafter"


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivableProfileSettings(ProfileSettings):
    """The options of a profile that is derived where this machine has no such device."""

    gpu: Annotated[
        str | None,
        Option(
            "Device card such as a100, or a .toml file; without such a device here, its data sheet is used.",
            MODELS,
        ),
        FIRST,
    ] = None
    origin: Annotated[
        Origin,
        Option(
            "Source of a derived profile: silicon (measured kernels), data-sheet (an analytic model), or auto: "
            "measured kernels where the kit has those of the model, else the analytic model.",
            MODELS,
            flag="from",
        ),
    ] = AUTO
    software: Annotated[
        str,
        Option(
            "Serving software whose speed is assumed: a name from `skit list software`.", MODELS
        ),
    ] = KERNELS
    host_s: Annotated[
        float | None,
        Option(
            "Seconds that the host of a derived profile takes per step; by default those of the --engine in "
            "`skit list engine-costs`.",
            MODELS,
        ),
    ] = None
    host_request_s: Annotated[
        float | None,
        Option(
            "Seconds that the host of a derived profile takes per request of a step; by default those of the --engine.",
            MODELS,
        ),
    ] = None
    overlap: Annotated[
        float,
        Option(
            "Share of the shorter of the host's and the card's time that is hidden, 0 to 1.", MODELS
        ),
    ] = 0.0
    require_measured: Annotated[
        bool,
        Option("Fail if this machine has no such --gpu, instead of using its data sheet.", MODELS),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierProfileSettings(DerivableProfileSettings):
    """The settings for a target alone, measured on this machine or derived from the data sheet of a
    device.
    """

    engine: Annotated[
        KernelEngine, Option("Serving engine whose kernels were measured.", MODELS)
    ] = "vllm"
    cards: Annotated[
        int,
        Option(
            "Number of cards that hold the model of a derived profile (tensor parallel).", MODELS
        ),
        FIRST,
    ] = 1
    interconnect: Annotated[
        str | None,
        Option(
            "Interconnect between the --cards: nvlink3, nvlink4, pcie5, pcie4 or pcie3.", MODELS
        ),
    ] = None
    expert_parallel: Annotated[
        bool,
        Option(
            "Give each of the --cards experts of its own, instead of a part of every expert of a mixture.",
            MODELS,
        ),
    ] = False
    save_to: Annotated[
        Path | None,
        Option("File to write (.toml); the default is one in your folder of profiles.", OUTPUT),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterProfileSettings(DerivableProfileSettings):
    """The settings for both models of a pair, measured on this machine or derived from the data sheet
    of a device.
    """

    draft: Annotated[
        str | None,
        Option(
            "Draft model: 'auto' for the one that belongs to the target, a pair from `skit list models`, a folder, a "
            "hub id, a .gguf file, an architecture card with random weights (a name such as qwen3-0.6b, or a .toml "
            "file), or with --gpu what is derived from the target: eagle3, mtp, block or 4bit.",
            MODELS,
        ),
        FIRST,
    ] = "auto"
    budget_s: Annotated[Budget, FIRST] = 240.0
    save_to: Annotated[
        Path | None,
        Option("Folder for both profiles; the default is your folder of profiles.", OUTPUT),
    ] = None
