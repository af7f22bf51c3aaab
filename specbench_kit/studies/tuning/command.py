"""`skit tune`: choose the options of each method by replaying a trace."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench_kit.cli.common import (
    JsonOption,
    command_line,
    print_json,
    require_file,
    say,
    say_left_out,
    say_report,
)
from specbench_kit.core.common_options import DeploymentOptions
from specbench_kit.core.option import OUTPUT, Option, select_fields
from specbench_kit.studies.tuning.options import TuningOptions

if TYPE_CHECKING:
    from specbench_kit.studies.tuned_options import TunedOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(TuningOptions):
    """The methods to tune, the traces that they replay, and the file of the result."""

    out: Annotated[
        Path,
        Option(
            "File to write, for `skit bench --tuned`; the report goes into a folder of its name beside it.",
            OUTPUT,
        ),
    ] = Path("results/tuned.json")


def tune(options: TuneOptions, placement: DeploymentOptions, as_json: JsonOption = False) -> None:
    """Tune the methods, save their options and a report on them, and print what each gains."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.deployments.loading import load
    from specbench_kit.studies.tuning.run import TuningSettings, run_tuning

    require_file(options.out, "tuned.json")
    settings = TuningSettings(
        **select_fields(TuningSettings, asdict(options)),
        deployment=load(placement.deployment, placement.replaced),
        argv=command_line(),
    )
    console = Console(stderr=as_json)
    with stepping_bar() as report:
        study = run_tuning(settings, options.out, report)
    study.kind.print(console, study)
    say_left_out(console, study.result.left_out)
    say_report(console, study.folder)
    say(
        console,
        f"tuned: {options.out}; run it with {_next_command(options, placement, study.result)}",
    )
    if as_json:
        print_json(
            {"file": str(options.out), "run_dirs": [str(study.folder)], **asdict(study.result)}
        )


def _next_command(options: TuneOptions, placement: DeploymentOptions, tuned: "TunedOptions") -> str:
    """Return the benchmark of what was tuned, of a bundled trace on its half for reports."""
    words = ["skit", "bench", *(word for name in tuned.methods for word in ("--method", name))]
    if len(options.traces) == 1 and (name := str(options.traces[0])).endswith(TUNE):
        words += ["--replay", name.removesuffix(TUNE)]
    words += ["--deployment", placement.deployment] if placement.deployment else []
    words += [word for text in placement.replaced for word in ("--set", text)]
    return shlex.join([*words, "--tuned", str(options.out)])


TUNE = "-tune"
"""What the name of a bundled trace for tuning ends with; the other half, for reports, is called
without it.
"""
