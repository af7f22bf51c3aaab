"""The settings of a profiling run, as the command line gives them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.core.common_options import Dtype, Force, Out, Resume, Seed, TorchDevice
from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import MODELS, OUTPUT, RUN, Option, options_in
from specbench_kit.profilers.software import FUSED

OF_MEASURED = ("budget_s", "runs", "seed", "resume", "force")
"""Options that a profile derived from a data sheet does not have."""
OF_DERIVED = ("software", "cards", "interconnect")
"""Options that a measured profile does not have."""

Budget = Annotated[
    float, Option("Seconds that the measurement may take; requests get shorter to fit.", RUN, flag="budget")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """The settings that both kinds of profiling runs share; raises SkitError for those that contradict each other.

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
    ] = "auto"
    draft: str | None = None
    gpu: str | None = None
    require_measured: bool = False
    software: str = FUSED
    cards: int = 1
    interconnect: str | None = None
    device: TorchDevice = "auto"
    dtype: Dtype = "auto"
    budget_s: Budget = 420.0
    runs: Annotated[int, Option("Number of passes through the workload.", RUN)] = 3
    seed: Seed = 0
    resume: Resume = False
    out: Out = Path("results")
    name: Annotated[
        str | None, Option("Name of the profile; the default is made of model, device, dtype and role.", OUTPUT)
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
            raise SkitError("--cards above 1 needs the --interconnect between the cards, and a single card has none")
        if self.gpu is None and (self.cards > 1 or not self.is_fused):
            raise SkitError("--software and --cards apply to a derived profile only: name its --gpu")
        if self.name is not None and (not self.name or set(self.name) & set("/\\:=,")):
            raise SkitError(f"--name '{self.name}' cannot be a file's name: use letters, digits, dots and dashes")
        if self.gpu is not None and self.device != "auto":
            raise SkitError("--gpu and --device both say where to run: give one of them")
        if self.draft is None and self.save_to is not None and self.save_to.suffix != ".toml":
            raise SkitError(f"--save-to must name a .toml file, not {self.save_to}")

    def require_options_of(self, *, measured: bool) -> None:
        """Raise SkitError for options that only the other kind of profile has: measured here, or derived.

        Which kind it is shows when the device has been looked for.
        """
        options, reason = (
            (OF_DERIVED, "this machine has that device, which is measured")
            if measured
            else (OF_MEASURED, "this machine has no such device, and a data sheet gives the same profile every time")
        )
        for field, _, option in options_in(type(self)):
            is_given = getattr(self, field.name) != field.default
            require(
                field.name not in options or not is_given,
                f"{option.shown_name(field.name)} has no effect: {reason}; leave it out",
            )

    @property
    def is_fused(self) -> bool:
        """True if a derived profile assumes kernels at the speed of the data sheet."""
        return self.software == FUSED

    @property
    def command(self) -> str:
        """The sub-command that has these settings."""
        return "profile-verifier" if self.draft is None else "profile-drafter"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierProfileSettings(ProfileSettings):
    """The settings for a target alone, measured on this machine or derived from the data sheet of a device."""

    gpu: Annotated[
        str | None,
        Option(
            "Device card such as a100, or a .toml file; without such a device here, its data sheet is used.", MODELS
        ),
    ] = None
    software: Annotated[
        str, Option("Serving software whose speed a derived profile assumes: a name from `skit list software`.", MODELS)
    ] = FUSED
    cards: Annotated[
        int, Option("Number of cards that hold the model of a derived profile (tensor parallel).", MODELS)
    ] = 1
    interconnect: Annotated[
        str | None, Option("Interconnect between the --cards: nvlink3, nvlink4, pcie4 or pcie3.", MODELS)
    ] = None
    require_measured: Annotated[
        bool, Option("Fail if this machine has no such --gpu, instead of using its data sheet.", MODELS)
    ] = False
    save_to: Annotated[
        Path | None, Option("File to write (.toml); the default is one in your folder of profiles.", OUTPUT)
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterProfileSettings(ProfileSettings):
    """The settings for both models of a pair, measured on this machine."""

    draft: Annotated[
        str | None,
        Option(
            "Draft model: 'auto' for the one that belongs to the target, a pair from `skit list models`, a folder, a "
            "hub id, a .gguf file, or an architecture card with random weights (a name such as qwen3-0.6b, or a .toml "
            "file).",
            MODELS,
        ),
    ] = "auto"
    budget_s: Budget = 240.0
    save_to: Annotated[
        Path | None, Option("Folder for both profiles; the default is your folder of profiles.", OUTPUT)
    ] = None
