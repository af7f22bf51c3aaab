"""`skit tune`: pick each method's options by replaying a trace."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench_kit import common_options as common
from specbench_kit.cli import options
from specbench_kit.cli.common import say
from specbench_kit.cli.declared import Given, options_of, part
from specbench_kit.option import DEPLOYMENT, OUTPUT, RUN, Option

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.bench.tuned import Tuned


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What is tuned, on what, and where the result goes."""

    methods: Annotated[
        tuple[str, ...],
        Option("Names of methods, 'all' or 'group:NAME'; may be given several times.", RUN, flag="method"),
    ]
    trace: Annotated[Path, Option("A trace of `skit record`; every other request is kept for the test.", RUN, "replay")]
    budget: Annotated[int, Option("Candidates of every method, its defaults among them.", RUN)] = 16
    deployment: common.TimeOf = "local"
    replaced: Annotated[
        tuple[str, ...],
        Option("Replace a field of the deployment; may be given several times.", DEPLOYMENT, flag="set"),
    ] = ()
    batch_size: common.BatchSize = 1
    seed: common.Seed = 0
    out: Annotated[Path, Option("The file for `skit bench --tuned`.", OUTPUT)] = Path("results/tuned.json")


@options_of(Tuning)
def tune(given: Given, as_json: options.JsonOption = False) -> None:
    """Pick each method's options by replay under the chosen clock, all with one budget, and show what that gains."""
    from rich.console import Console

    from specbench_kit.bench import tuned, tuning
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.deployments.loading import load

    asked = Tuning(**given)
    chosen = {**part(tuning.Settings, asdict(asked)), "deployment": load(asked.deployment, asked.replaced)}
    settings = tuning.Settings(**chosen, argv=("skit", *sys.argv[1:]))
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


def _print(console: "Console", found: "Tuned") -> None:
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
    parts = f"{found.run['requests']} requests, half to choose and half for these figures"
    console.print(Text(f"{found.deployment}, batch of {found.batch_size}: {parts}", style="dim"))
