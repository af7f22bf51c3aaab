"""What a profiling run is asked to do, as the command line gives it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.core.common_options import Dtype, Force, Out, Resume, Seed, TorchDevice
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import MODELS, OUTPUT, RUN, Option
from specbench_kit.profilers.software import FUSED

Budget = Annotated[float, Option("Seconds that measuring may take; lengths shrink to fit.", RUN, flag="budget")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """Checked when made.

    `gpu` names a device card, `device` one of torch's; `draft` is set where a pair is profiled. Profiles go to the
    user's folder, or a verifier's to the file `save_to` and a pair's to the folder `save_to`; those that were measured
    on a disturbed machine only by `force`.
    """

    target: Annotated[
        str,
        Option(
            "'bundled', a folder, a hub id, or an architecture card: a name such as qwen3-32b, or a .toml file.", MODELS
        ),
    ] = "bundled"
    draft: str | None = None
    gpu: str | None = None
    require_measured: bool = False
    software: Annotated[
        str, Option("Whose speed a derived profile stands for: fused, or a name from `skit list software`.", MODELS)
    ] = FUSED
    cards: Annotated[int, Option("Cards that a derived profile's model is spread over (tensor parallel).", MODELS)] = 1
    interconnect: Annotated[str | None, Option("Between those cards: nvlink3, nvlink4, pcie4 or pcie3.", MODELS)] = None
    device: TorchDevice = "auto"
    dtype: Dtype = "auto"
    budget_s: Budget = 420.0
    runs: Annotated[int, Option("Times that the workload is gone through.", RUN)] = 3
    seed: Seed = 0
    resume: Resume = False
    out: Out = Path("results")
    name: Annotated[str | None, Option("What the profile is called.", OUTPUT)] = None
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
            raise SkitError("--cards above 1 needs the --interconnect between them, and one card has none")
        if self.gpu is None and (self.cards > 1 or not self.is_fused):
            raise SkitError("--software and --cards are for a profile that is derived: name its --gpu")
        if self.name is not None and (not self.name or set(self.name) & set("/\\:=,")):
            raise SkitError(f"--name '{self.name}' cannot be a file's name: use letters, digits, dots and dashes")
        if self.gpu is not None and self.device != "auto":
            raise SkitError("--gpu and --device both say where to run: give one of them")
        if self.draft is None and self.save_to is not None and self.save_to.suffix != ".toml":
            raise SkitError(f"--save-to must name a .toml file, not {self.save_to}")

    @property
    def is_fused(self) -> bool:
        """Whether a derived profile stands for the data sheet itself."""
        return self.software == FUSED

    @property
    def command(self) -> str:
        """The sub-command that these settings are of."""
        return "profile-verifier" if self.draft is None else "profile-drafter"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierProfileSettings(ProfileSettings):
    """A target alone, here or by the data sheet of a device."""

    gpu: Annotated[
        str | None,
        Option(
            "A device card such as a100, or a .toml file; derived from its data sheet where it is not here.", MODELS
        ),
    ] = None
    require_measured: Annotated[bool, Option("An absent --gpu is an error.", MODELS)] = False
    save_to: Annotated[Path | None, Option("The .toml file to write, instead of your profiles.", OUTPUT)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterProfileSettings(ProfileSettings):
    """Both models of a pair."""

    draft: Annotated[
        str | None,
        Option(
            "'bundled', a folder, a hub id, or an architecture card: a name such as qwen3-0.6b, or a .toml file.",
            MODELS,
        ),
    ] = "bundled"
    budget_s: Budget = 240.0
    save_to: Annotated[Path | None, Option("Folder for both profiles, instead of your own.", OUTPUT)] = None
