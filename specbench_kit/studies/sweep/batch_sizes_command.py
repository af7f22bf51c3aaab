"""`skit batch-sizes`: throughput against time per token over batch sizes, one curve per method."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.cli.common import (
    JsonOption,
    command_line,
    load_dataset,
    say_left_out,
    say_target,
    tell_report,
)
from specbench_kit.core import common_options as common
from specbench_kit.core.common_options import DatasetOptions, DeploymentOptions
from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import FIRST, RUN, Option, WithoutEffect, select_fields
from specbench_kit.core.without_effect import RECORDED, beside
from specbench_kit.studies.bench.settings import BenchSettings

SIZES = (1, 2, 4, 8, 16, 32)


def _whole_numbers(option: str, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts) or len(
        set(parts)
    ) < len(parts):
        raise SkitError(
            f"{option} must be different whole numbers from 1 up, as in 1,2,4,8, not '{text}'"
        )
    return tuple(sorted(map(int, parts)))


def _parse_sizes(text: str) -> tuple[int, ...]:
    return _whole_numbers("--sizes", text)


def _parse_contexts(text: str) -> tuple[int, ...]:
    return _whole_numbers("--contexts", text)


REPLAYED = WithoutEffect(beside("replay"), RECORDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizesOptions:
    """The methods and the batch sizes at which they decode."""

    methods: Annotated[
        tuple[str, ...],
        Option(
            "Method: name or name:key=value,..., 'all' or 'group:NAME'; may be given several times.",
            RUN,
            flag="method",
        ),
        FIRST,
    ]
    sizes: Annotated[
        tuple[int, ...], Option("Batch sizes, separated by commas.", RUN, parse=_parse_sizes), FIRST
    ] = SIZES
    contexts: Annotated[
        tuple[int, ...],
        Option(
            "Contexts in tokens, separated by commas, for which a table says how many tokens to draft at each batch "
            "size: by the step times of --deployment, with the acceptance of the runs, of several fixed-k.",
            RUN,
            parse=_parse_contexts,
        ),
    ] = ()
    replay: Annotated[common.Replay, FIRST] = None
    limit: Annotated[
        int | None,
        Option(
            "Number of prompts, drawn with --seed; of a trace, the number of its first requests. They are repeated as "
            "often as four times the batch size takes.",
            RUN,
        ),
        FIRST,
    ] = 64
    target: Annotated[common.Target, FIRST, REPLAYED] = "auto"
    draft: Annotated[common.Draft, FIRST, REPLAYED] = "auto"
    device: Annotated[common.TorchDevice, REPLAYED] = "auto"
    dtype: Annotated[common.Dtype, REPLAYED] = "auto"
    executor: Annotated[common.ExecutorName, REPLAYED] = "auto"
    max_new_tokens: Annotated[common.MaxNewTokens, FIRST, REPLAYED] = 128
    tuned: Annotated[
        Path | None,
        Option(
            "File of `skit tune` with the options to use for methods that are named without options.",
            RUN,
        ),
    ] = None
    seed: common.Seed = 0
    out: Annotated[common.Out, FIRST] = Path("results")


def batch_sizes(
    options: BatchSizesOptions,
    dataset: Annotated[DatasetOptions, REPLAYED],
    placement: DeploymentOptions,
    as_json: JsonOption = False,
) -> None:
    """Decode with every batch size, print the speeds and say where the report is."""
    from rich.console import Console

    from specbench_kit.deployments.fields import parse_field
    from specbench_kit.deployments.loading import find, load
    from specbench_kit.serving.memory import UNLIMITED_KV
    from specbench_kit.studies.sweep.batch_sizes import fixed_length

    settings = BenchSettings(
        **select_fields(BenchSettings, asdict(options)),
        deployment=load(placement.deployment, placement.replaced),
        argv=command_line(),
    )
    require(
        not options.contexts or settings.deployment is not None,
        "--contexts needs the step times of a --deployment: those measured here are of the contexts that were decoded",
    )
    lengths = [spec for spec in options.methods if fixed_length(spec)]
    require(
        not options.contexts or len(lengths) > 1,
        "--contexts compares drafts of several lengths: give --method fixed-k:k=... more than once",
    )
    console = Console(stderr=as_json)
    source = options.replay or load_dataset(dataset, settings.limit, settings.seed, console)
    if options.replay is None:
        say_target(console, options.target)
    from specbench_kit.cli.progress import decoding_bar
    from specbench_kit.studies.sweep.batch_sizes_run import run_curves
    from specbench_kit.studies.sweep.lengths import kv_room

    room = UNLIMITED_KV
    if options.contexts:
        definition = find(placement.deployment).replace(dict(map(parse_field, placement.replaced)))
        room = kv_room(definition)
    with decoding_bar() as report:
        study = run_curves(settings, options.sizes, source, report, options.contexts, room)
    study.kind.print(console, study)
    say_left_out(console, study.result.left_out)
    tell_report(console, study.folder, study.result, as_json)
