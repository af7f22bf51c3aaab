"""The file that `skit tune` writes and `skit bench --tuned` reads: each method's options for one
deployment.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import OptionValues
from specbench_kit.core.typed_json import convert
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.runs.document import LoweredOption
from specbench_kit.runs.folder import to_json, write_text

SCHEMA = 1
FOLDER = "tuned"
"""The folder of tuned options among what is bundled for a target: one file for each deployment."""
MEASURED = "local"
"""The name of the file for runs without a deployment."""


class TunedTrace(TypedDict, total=False):
    """The trace that methods were tuned on. What it says of data set and models is kept as it is
    there.
    """

    dataset: Annotated[
        OptionValues | None, Meta(description="its prompts; null if it does not say")
    ]
    models: Annotated[dict[str, OptionValues | None], Meta(description="its models, by role")]
    requests: Annotated[int, Meta(description="requests that were replayed")]
    trace: Annotated[str, Meta(description="SHA-256 of its file")]
    seed: Annotated[int, Meta(description="seed of the candidates")]
    argv: Annotated[list[str], Meta(description="command line")]
    lowered_limits: Annotated[
        dict[str, LoweredOption], Meta(description="methods that draft shorter than by default")
    ]


@dataclass(frozen=True, slots=True)
class TunedMethod:
    """The options that were chosen for a method."""

    spec: Annotated[str, Meta(description="the chosen spec")]
    tried: Annotated[int, Meta(description="candidates that were tried")]
    tokens_per_s: Annotated[
        float, Meta(description="tokens per second of the chosen spec on the test requests")
    ]
    default_tokens_per_s: Annotated[
        float | None,
        Meta(description="the same of the default options; null if the trace cannot serve these"),
    ]
    gain_interval: Annotated[
        list[float] | None,
        Meta(
            description="95% interval of what decided / that of the default options; null where speed decided "
            "for batches, whose requests share their time, without 'default_tokens_per_s', and for too few test "
            "requests"
        ),
    ] = None
    value: Annotated[
        float | None,
        Meta(
            description="what the objective of the tuning maximises, of the chosen spec on the test requests; null "
            "for goodput, which is 'tokens_per_s'"
        ),
    ] = None
    default_value: Annotated[
        float | None,
        Meta(
            description="the same of the default options; null for goodput, and if the trace cannot serve these"
        ),
    ] = None

    @property
    def merit(self) -> float:
        """What the objective of the tuning maximises."""
        return self.tokens_per_s if self.value is None else self.value

    @property
    def default_merit(self) -> float | None:
        """The same of the default options; None if the trace cannot serve these."""
        return self.default_tokens_per_s if self.value is None else self.default_value


@dataclass(frozen=True, slots=True)
class TunedDraft:
    """One draft of several that were compared, and the method that is best with it, on the test
    requests.
    """

    name: Annotated[str, Meta(description="name of the draft")]
    trace: Annotated[str, Meta(description="file name of the trace that was recorded with it")]
    step_s: Annotated[
        float, Meta(description="seconds of a draft step when the trace was recorded")
    ]
    method: Annotated[str, Meta(description="name of the best method")]
    spec: Annotated[str, Meta(description="its chosen spec")]
    tokens_per_s: Annotated[float, Meta(description="tokens per second of that spec")]
    value: Annotated[
        float | None,
        Meta(
            description="what the objective maximises, of that spec; null for goodput, which is 'tokens_per_s'"
        ),
    ] = None

    @property
    def merit(self) -> float:
        """What the objective of the tuning maximises."""
        return self.tokens_per_s if self.value is None else self.value


@dataclass(frozen=True, slots=True)
class TunedOptions:
    """The options that were chosen for methods, and what they were chosen with."""

    methods: Annotated[
        Mapping[str, TunedMethod], Meta(description="what was chosen, by the method's name")
    ]
    deployment: Annotated[str, Meta(description="name of the deployment whose time decided")]
    batch_size: Annotated[int, Meta(description="requests that were decoded at once")]
    budget: Annotated[
        int,
        Meta(
            description="candidates per method, its default options included, that were to be tried"
        ),
    ]
    run: Annotated[
        TunedTrace,
        Meta(
            description="what was replayed: data set, models, requests, hash of the trace, seed and command "
            "line"
        ),
    ] = field(default_factory=TunedTrace)
    drafts: Annotated[
        list[TunedDraft],
        Meta(
            description="the drafts that were compared, the chosen one first; empty if there was one trace "
            "alone"
        ),
    ] = field(default_factory=list)
    disturbed: Annotated[
        list[str],
        Meta(description="what disturbed the machine that timed the steps, if its times decided"),
    ] = field(default_factory=list)
    """What disturbed the machine that timed the steps, if its times decided."""
    objective: Annotated[
        Literal["goodput", "cost", "energy"],
        Meta(
            description="what decided: tokens per second, per verified token, or per second of drafting"
        ),
    ] = "goodput"

    def spec(self, spec: str) -> str:
        """Return the tuned spec of a method; a spec with options of its own is returned
        unchanged.
        """
        tuned = self.methods.get(spec)
        return tuned.spec if tuned else spec

    def lacking(self, specs: Iterable[str]) -> list[str]:
        """Return the methods that are named without options and were not tuned; plain decoding has
        none to tune.
        """
        tuned = {method.spec for method in self.methods.values()}
        return [
            spec
            for spec in specs
            if ":" not in spec and spec != BASELINE and spec not in {*self.methods, *tuned}
        ]

    def doubts(self, deployment: str, batch_size: int) -> list[str]:
        """Return a line for each condition of a benchmark that differs from that of the tuning."""
        conditions = {
            "deployment": (self.deployment, deployment),
            "batch size": (self.batch_size, batch_size),
        }
        return [
            f"tuned for {name} {tuned}, run with {current}"
            for name, (tuned, current) in conditions.items()
            if tuned != current
        ]


def save(tuned: TunedOptions, path: Path) -> None:
    """Write a file, replacing an older one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, to_json({"schema": SCHEMA, **asdict(tuned)}))


def bundled_file(folder: Path | None, target: str, deployment: str | None) -> Path:
    """Return the file of a deployment in the folder of what is bundled for a target; SkitError if
    there is none.
    """
    files = (
        {}
        if folder is None
        else {file.stem: file for file in sorted((folder / FOLDER).glob("*.json"))}
    )
    own = "make some with skit record and skit tune, and name the file"
    if not files:
        raise SkitError(
            f"--tuned auto: no tuned options are bundled for the target '{target}': {own}"
        )
    name = deployment or MEASURED
    if name not in files:
        raise SkitError(
            f"--tuned auto: none are bundled for '{target}' under the deployment {name}, but under {', '.join(files)}: "
            f"{own}"
        )
    return files[name]


def load(path: Path) -> TunedOptions:
    """Read a file and check every spec in it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.pop("schema") != SCHEMA:
            raise ValueError("it has another schema")
        tuned = convert(TunedOptions, document)
        for method in tuned.methods.values():
            parse_method(method.spec)
        return tuned
    except OSError as error:
        raise SkitError(f"--tuned {path}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SkitError(f"--tuned {path}: not a file of skit tune ({error})") from error
