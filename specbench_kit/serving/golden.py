"""Published mean acceptance lengths as a source of acceptance: `golden:NAME,k=4`. Imports nothing
heavy.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from specbench_kit.core.errors import SkitError, did_you_mean
from specbench_kit.core.plain_text import first_line
from specbench_kit.core.typed_json import convert

GOLDEN = "golden"
CURVES = Path(__file__).with_name("golden.toml")
MODES = {True: "thinking_on", False: "thinking_off"}


@dataclass(frozen=True, slots=True)
class GoldenCurve:
    """Mean acceptance lengths of a model with a drafter by the number of drafted tokens, with and
    without thinking.
    """

    summary: str
    source: str
    thinking_on: Mapping[int, float] = field(default_factory=dict)
    thinking_off: Mapping[int, float] = field(default_factory=dict)

    def lengths(self, thinking: bool) -> Mapping[int, float]:
        """Return the acceptance lengths of one mode by the number of drafted tokens."""
        return self.thinking_on if thinking else self.thinking_off


class BundledCurve(Struct, forbid_unknown_fields=True):
    """A table of `golden.toml`, whose lengths are those of one drafted token, of two, and so on."""

    summary: str
    source: str
    thinking_on: list[float] = []
    thinking_off: list[float] = []

    def curve(self) -> GoldenCurve:
        """Return the curve with its lengths by the number of drafted tokens."""
        on, off = (dict(enumerate(own, 1)) for own in (self.thinking_on, self.thinking_off))
        return GoldenCurve(self.summary, self.source, on, off)


def golden_curves() -> Mapping[str, GoldenCurve]:
    """Return the curves that come with the kit by name."""
    entries = convert(dict[str, BundledCurve], tomllib.loads(CURVES.read_text(encoding="utf-8")))
    return {name: entry.curve() for name, entry in entries.items()}


def golden_length(name: str, drafted: int, *, thinking: bool) -> float:
    """Return the mean acceptance length of a curve, which is one of the kit's or a file in
    InferenceX's form.

    Raise SkitError if the curve does not have it: nothing between measured numbers is guessed.
    """
    lengths = _curve(name).lengths(thinking)
    if drafted not in lengths:
        known = ", ".join(f"k={number}" for number in lengths) or "none"
        mode = MODES[thinking].replace("_", " ")
        raise SkitError(
            f"golden: '{name}' has no acceptance length for k={drafted} with {mode}; known: {known}"
        )
    length = lengths[drafted]
    if not 1 <= length <= drafted + 1:
        raise SkitError(
            f"golden: '{name}' has an acceptance length of {length:g} for k={drafted}; it must lie in 1..{drafted + 1}"
        )
    return length


def _curve(name: str) -> GoldenCurve:
    file = Path(name).expanduser()
    if file.suffix in {".yaml", ".yml"}:
        return read_curve(file)
    curves = golden_curves()
    if name not in curves:
        raise SkitError(
            f"golden: no curve '{name}'{did_you_mean(name, curves)}: name a YAML file in InferenceX's form, or one of "
            f"{', '.join(curves)}"
        )
    return curves[name]


def read_curve(file: Path) -> GoldenCurve:
    """Return the curve of a YAML file in InferenceX's form: a model, its modes, and their lengths
    by drafted tokens.
    """
    import yaml

    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        models = {name: modes for name, modes in document.items() if not str(name).startswith("_")}
        ((model, modes),) = models.items()
        curves = {mode: convert(dict[int, float], modes.get(mode, {})) for mode in MODES.values()}
        return GoldenCurve(str(model), file.name, **curves)
    except OSError as error:
        raise SkitError(f"golden: cannot read '{file}': {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError, AttributeError, TypeError, ValueError) as error:
        raise SkitError(
            f"golden: '{file}' is not one model with acceptance lengths under thinking_on or thinking_off "
            f"({first_line(error)})"
        ) from error
