"""Count waits, copies, launches and synchronisations of decoding on a GPU, on the emulated card of the tests."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch

from benchmarks.common import Figure, Outcome, Setting, Skipped
from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.base import Method, methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.models.runner import Runner

if TYPE_CHECKING:
    from emulated_card import Machine

TESTS = Path(__file__).parents[1] / "tests"
BATCH_SIZES = (1, 8)
TOKENS = 24
SAMPLED = ("fixed-k", "threshold", "specinfer")
"""Methods that are counted at a temperature of .7 too."""
COLUMNS = (
    "waits/round",
    "synchronisations/round",
    "copies to card/round",
    "launches/round",
    "launches/drafted token",
)


@dataclass(frozen=True, slots=True)
class MethodCounts:
    """The counts of one method, by round of its engine after the one that reads the prompts."""

    label: str
    rounds: int
    drafted: int
    waits: int
    synchronisations: int
    copies: int
    launches: int

    @property
    def row(self) -> list[float]:
        """Return the numbers of `COLUMNS`; launches per drafted token are 0 for a method that drafts nothing."""
        counts = (self.waits, self.synchronisations, self.copies, self.launches)
        return [
            *(count / self.rounds for count in counts),
            self.launches / self.drafted if self.drafted else 0.0,
        ]


def run(setting: Setting) -> Outcome:
    """Count for every method, alone and in batches of eight."""
    if not TESTS.is_dir():
        raise Skipped("the emulated card is in the folder tests, which is not here")
    sys.path.append(str(TESTS))
    from emulated_card import emulated_cards

    with emulated_cards(1) as machine, TemporaryDirectory() as folder:
        pair = load_pair(setting.target, setting.draft, device="cuda:0")
        counted = [
            counts
            for batch_size in BATCH_SIZES
            for name in methods.all()
            for temperature in ((0.0, 0.7) if name in SAMPLED else (0.0,))
            if (method := _prepared(name, Path(folder))) is not None and _has_rounds(method)
            for counts in _count(
                machine, pair, method, _requests(setting, batch_size), Sampler(temperature)
            )
        ]
    figures = [
        Figure(f"most {column}", max(counts.row[place] for counts in counted), "")
        for place, column in enumerate(COLUMNS)
    ]
    table = _markdown(counted)
    return Outcome(
        "Counts on an emulated card", figures, table, {"card_counts.md": "\n".join(table).encode()}
    )


def _has_rounds(method: Method) -> bool:
    """Return whether a method decodes in rounds that end with a verification, and not in the steps of a pipeline."""
    return method.pipeline is None


def _prepared(name: str, folder: Path) -> Method | None:
    """Return a method with its default options, or those that tests try; None if it needs what this pair lacks."""
    from environments import ENVIRONMENT
    from method_specs import filled_in, variants

    places = filled_in(folder)
    for spec in (name, *variants(name)):
        try:
            return parse_method(spec.format(**places)).prepare(ENVIRONMENT)
        except SkitError:
            continue
    return None


def _requests(setting: Setting, batch_size: int) -> list[Request]:
    """Return one request per slot, of which some may have the same prompt."""
    prompts = [request.prompt_ids for request in setting.requests]
    return [
        Request(f"{i:03}", "count", prompts[i % len(prompts)], TOKENS) for i in range(batch_size)
    ]


def _count(
    machine: "Machine", pair: Pair, method: Method, requests: Sequence[Request], sampler: Sampler
) -> list[MethodCounts]:
    """Decode all requests as one batch, and count from the second round on: the first one reads the prompts."""
    from tiny_heads import heads_beside
    from tiny_models import AUTOREGRESSIVE, decode, with_references

    longest = max(len(request.prompt_ids) for request in requests)
    runners: tuple[Runner, Runner] = pair.runners(len(requests) + 1, longest + TOKENS)
    torch.manual_seed(0)
    if method.needs_reference:
        plain = decode(AUTOREGRESSIVE, runners, requests, batch_size=len(requests))
        requests = with_references(requests, plain)
    others = heads_beside(method, runners[0])
    loop = local_loop(
        method,
        *runners,
        setup=DecodingSetup(sampler=sampler, batch_size=len(requests)),
        others=others,
        deployment=None,
    )
    for request in requests:
        loop.submit(request)
    records: list[RequestRecord] = list(loop.step())
    rounds = 0
    with machine.counts.during() as counts:
        while not loop.idle:
            rounds += 1
            records += loop.step()
    label = (
        method.display_name
        + f", batch {len(requests)}"
        + ("" if sampler.greedy else f", {sampler.temperature:g}")
    )
    drafted = sum(round_.drafted for record in records for round_ in record.rounds[1:])
    return (
        [
            MethodCounts(
                label,
                rounds,
                drafted,
                counts.waits,
                counts.synchronisations,
                counts.copies_to_card,
                counts.launches,
            )
        ]
        if rounds
        else []
    )


def _markdown(counted: Sequence[MethodCounts]) -> list[str]:
    """Return the lines of a table with one row per method."""
    lines = [f"| method | {' | '.join(COLUMNS)} |", "| --- |" + " ---: |" * len(COLUMNS)]
    return lines + [
        f"| {counts.label} | {' | '.join(f'{value:.1f}' for value in counts.row)} |"
        for counts in counted
    ]
