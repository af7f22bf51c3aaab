"""`skit tune`: pick each method's options by replaying a trace."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench_kit.cli import options
from specbench_kit.cli.common import command_line, require_file, say
from specbench_kit.core.common_options import DeploymentOptions
from specbench_kit.core.option import OUTPUT, Option, select_fields
from specbench_kit.studies.tuning.options import TuningOptions

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.studies.bench.tuned_options import TunedOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning(TuningOptions):
    """Where the result goes."""

    out: Annotated[Path, Option("The file for `skit bench --tuned`.", OUTPUT)] = Path("results/tuned.json")


def tune(asked: Tuning, timed: DeploymentOptions, as_json: options.JsonOption = False) -> None:
    """Pick each method's options by replay under the chosen clock, all with one budget, and show what that gains."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.deployments.loading import load
    from specbench_kit.studies.bench import tuned_options as tuned
    from specbench_kit.studies.tuning import run as tuning

    require_file(asked.out)
    chosen = {
        **select_fields(tuning.TuningSettings, asdict(asked)),
        "deployment": load(timed.deployment, timed.replaced),
    }
    settings = tuning.TuningSettings(**chosen, argv=command_line())
    console = Console(stderr=as_json)
    with stepping_bar() as report:
        found, left_out = tuning.tune(settings, report)
    tuned.save(found, asked.out)
    _print(console, found)
    for spec, reason in left_out.items():
        say(console, f"left out: {spec}: {reason}")
    say(console, f"tuned: {asked.out}; run it with skit bench --tuned {asked.out}")
    if as_json:
        print(json.dumps({"file": str(asked.out), **asdict(found), "left_out": left_out}))


def _print(console: "Console", found: "TunedOptions") -> None:
    from rich.text import Text

    from specbench_kit.reports.writing.console import empty_table
    from specbench_kit.reports.writing.formatting import ABSENT

    table = empty_table(["default\ntokens/s", "tuned\ntokens/s", "tried", "options"])
    table.columns[0].no_wrap = True
    table.columns[-1].justify, table.columns[-1].overflow, table.columns[-1].no_wrap = "left", "fold", False
    for name, choice in found.methods.items():
        default = ABSENT if choice.default_tokens_per_s is None else f"{choice.default_tokens_per_s:.1f}"
        options = choice.spec.partition(":")[2] or "as it comes"
        table.add_row(*map(Text, (name, default, f"{choice.tokens_per_s:.1f}", str(choice.tried), options)))
    console.print(table)
    if any(choice.default_tokens_per_s is None for choice in found.methods.values()):
        console.print(Text(f"{ABSENT} as it comes, the method cannot be replayed on this trace", style="dim"))
    parts = f"{found.run['requests']} requests, half to choose and half for these figures"
    console.print(Text(f"{found.deployment}, batch of {found.batch_size}: {parts}", style="dim"))
