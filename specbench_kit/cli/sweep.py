"""`skit sweep`: replay a trace over a grid of deployments and options."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specbench_kit import common_options as common
from specbench_kit.cli import options
from specbench_kit.cli.common import load_dataset, tell_report
from specbench_kit.cli.declared import Given, options_of, part
from specbench_kit.option import DECODING, DEPLOYMENT, RUN, Option

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.datasets.base import LoadedDataset
    from specbench_kit.sweeps.run import Outcome
    from specbench_kit.sweeps.settings import Settings

RECORDED = ("target", "draft", "device", "dtype", "max_new_tokens", "seed", "limit")
"""Options of the trace that is recorded first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What is compared, and what is recorded for it: 100 prompts take a minute or two on two cores."""

    methods: Annotated[
        tuple[str, ...],
        Option("name or name:key=value,...; may be given several times.", RUN, flag="method"),
    ]
    replaced: Annotated[
        tuple[str, ...],
        Option(
            "KEY=VALUE,VALUE,... of the deployment (link.rtt_s), of a method (fixed-k.k) or of a synthetic draft "
            "(draft.ranks); may be given several times. If left out, what the deployment proposes.",
            DEPLOYMENT,
            flag="set",
        ),
    ] = ()
    deployment: common.TimeOf = "local"
    trace: Annotated[Path | None, Option("A trace of `skit record`, instead of recording one.", RUN, flag="replay")] = (
        None
    )
    dataset: common.DrawnDataset = "gsm8k"
    limit: Annotated[int | None, Option("Number of prompts, drawn by --seed.", RUN)] = 100
    data_dir: common.DataDir = None
    sample: common.Sample = True
    target: common.Target = "bundled"
    draft: common.Draft = "bundled"
    device: common.TorchDevice = "auto"
    dtype: common.Dtype = "auto"
    max_new_tokens: common.MaxNewTokens = 128
    max_draft: Annotated[int, Option("Draft tokens recorded at every offset.", DECODING)] = 8
    batch_size: common.BatchSize = 1
    seed: common.Seed = 0
    out: common.Out = Path("results")

    def settings(self) -> "Settings":
        """Of the sweep, and of the recording before it."""
        from specbench_kit.bench.settings import RECORDED_TOGETHER
        from specbench_kit.bench.settings import Settings as RecordSettings
        from specbench_kit.sweeps.settings import Settings

        argv, asked = ("skit", *sys.argv[1:]), asdict(self)
        recorded = {name: asked[name] for name in RECORDED}
        recording = RecordSettings(methods=("autoregressive",), batch_size=RECORDED_TOGETHER, argv=argv, **recorded)
        return Settings(recording=recording, argv=argv, **part(Settings, asked))


@options_of(Sweep)
def sweep(given: Given, as_json: options.JsonOption = False) -> None:
    """Compare methods over a range of deployments or options, and find where they stop paying for themselves."""
    from rich.console import Console

    asked = Sweep(**given)
    settings = asked.settings()
    settings.points()
    console = Console(stderr=as_json)
    recorded = asked.trace is None and not settings.synthetic
    outcome = _run(settings, _load(settings, asked, console) if recorded else None)
    _print_outcome(console, outcome)
    tell_report(console, outcome.folder, outcome.summary, as_json)


def _load(settings: "Settings", asked: Sweep, console: "Console") -> "LoadedDataset":
    return load_dataset(asked.dataset, asked.data_dir, asked.sample, settings.recording, console)


def _run(settings: "Settings", dataset: "LoadedDataset | None") -> "Outcome":
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.sweeps.run import run_sweep

    with stepping_bar() as report:
        return run_sweep(settings, dataset, report)


def _print_outcome(console: "Console", outcome: "Outcome") -> None:
    from specbench_kit.reports.sweep.terminal import print_sweep

    print_sweep(console, outcome.run, outcome.summary)
