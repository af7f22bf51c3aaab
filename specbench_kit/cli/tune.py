"""`skit tune`: choose the options of each method by replaying a trace."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench_kit.cli.common import JsonOption, command_line, require_file, say, say_left_out
from specbench_kit.core.common_options import DeploymentOptions
from specbench_kit.core.option import OUTPUT, Option, select_fields
from specbench_kit.studies.tuning.options import TuningOptions

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.studies.bench.tuned_options import TunedOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(TuningOptions):
    """The methods to tune, the trace that they replay, and the file of the result."""

    out: Annotated[Path, Option("File to write, for `skit bench --tuned`.", OUTPUT)] = Path("results/tuned.json")


def tune(options: TuneOptions, placement: DeploymentOptions, as_json: JsonOption = False) -> None:
    """Tune the methods, save their options and print what each gains."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.deployments.loading import load
    from specbench_kit.studies.bench import tuned_options
    from specbench_kit.studies.tuning import run as tuning

    require_file(options.out)
    settings = tuning.TuningSettings(
        **select_fields(tuning.TuningSettings, asdict(options)),
        deployment=load(placement.deployment, placement.replaced),
        argv=command_line(),
    )
    console = Console(stderr=as_json)
    with stepping_bar() as report:
        tuned, left_out = tuning.tune(settings, report)
    tuned_options.save(tuned, options.out)
    _print_gains(console, tuned)
    say_left_out(console, left_out)
    say(console, f"tuned: {options.out}; run it with skit bench --tuned {options.out}")
    if as_json:
        print(json.dumps({"file": str(options.out), **asdict(tuned), "left_out": left_out}))


def _print_gains(console: "Console", tuned: "TunedOptions") -> None:
    from specbench_kit.reports import render_terminal
    from specbench_kit.reports.document import Block, Column, Note, Table
    from specbench_kit.reports.writing.formatting import ABSENT

    columns = ("method", Column("default\ntokens/s", "number"), Column("tuned\ntokens/s", "number"))
    rows = []
    for name, choice in tuned.methods.items():
        default = ABSENT if choice.default_tokens_per_s is None else f"{choice.default_tokens_per_s:.1f}"
        options = choice.spec.partition(":")[2] or "the defaults"
        rows.append((name, default, f"{choice.tokens_per_s:.1f}", choice.tried, options))
    blocks: list[Block] = [Table((*columns, Column("tried", "count"), Column("options")), rows)]
    if any(choice.default_tokens_per_s is None for choice in tuned.methods.values()):
        blocks.append(Note(f"{ABSENT}: with its defaults, the method cannot be replayed on this trace"))
    requests = f"{tuned.run['requests']} requests: one half to choose options, the other for these figures"
    blocks.append(Note(f"{tuned.deployment}, batch of {tuned.batch_size}, {requests}"))
    render_terminal.show(console, blocks)
