"""One real model in the kit, llama.cpp and transformers: the same prompts in turns, one thread each, outputs compared.

Times are processor time of the one thread, which other programs on the machine disturb less than wall time. llama.cpp
reads files made of the weights that the kit runs: bf16, and those quantised to 8 bits and to the file's own type.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

import torch

from benchmarks import peer_models
from benchmarks.common import (
    Figure,
    Outcome,
    Seconds,
    Setting,
    over_rounds,
    round_ratios,
    take_turns,
)
from benchmarks.gguf_types import real_pair
from benchmarks.llama_library import require_llama_cpp
from benchmarks.peer_models import Peer
from specbench_kit.decoding.session import Request
from specbench_kit.models.pair import Pair
from specbench_kit.studies.conversations import Conversation

CONTEXT = 200
WIDTHS = (1, 5, 17, 33)
REPEATS = 6
REFERENCE = "kit, native"
Outputs = Mapping[str, Sequence[Sequence[int]]]


def run(setting: Setting) -> Outcome:
    """Decode greedily with every peer, then time prefill and forwards of several tokens after 200."""
    require_llama_cpp()
    pair = real_pair(setting)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with TemporaryDirectory() as folder:
            requests = _requests(setting, pair)
            longest = max(
                max(len(request.prompt_ids) for request in requests) + setting.max_new_tokens,
                CONTEXT,
            )
            peers = peer_models.all_peers(pair, longest + max(WIDTHS), Path(folder))
            results = _measure(peers, requests, setting.rounds)
    finally:
        torch.set_num_threads(threads)
    figures = [figure for name in peers for figure in results.figures(name)]
    title = f"{pair.target.source.label} beside llama.cpp and transformers, one thread each"
    return Outcome(title, figures, files={"peers.md": results.table().encode()})


def _requests(setting: Setting, pair: Pair) -> list[Request]:
    talks = (
        Conversation(prompt, pair.tokenizer, setting.max_new_tokens)
        for prompt in setting.dataset.prompts
    )
    return [request for talk in talks if (request := talk.next_request()) is not None]


@dataclass(frozen=True)
class Results:
    """The outputs of every peer, and processor seconds of decoding, prefill and forwards."""

    outputs: Outputs
    decoding: Seconds
    forwards: Mapping[int, Seconds]
    """Seconds by tokens per forward after the context; under 0 those of the prefill."""

    def tokens_per_s(self, name: str) -> list[float]:
        """Return output tokens per second of whole requests, prefill included, for each round."""
        tokens = sum(map(len, self.outputs[name]))
        return [tokens / sum(row) for row in self.decoding[name]]

    def milliseconds(self, name: str, width: int) -> list[float]:
        """Return the median time of a forward for each round."""
        return [1000 * median(row) for row in self.forwards[width][name]]

    def agreement(self, name: str) -> tuple[float, float | None]:
        """Return the share of outputs equal to the kit's, and the median position at which the others differ first."""
        pairs = list(zip(self.outputs[name], self.outputs[REFERENCE], strict=True))
        positions = [
            position for pair in pairs if (position := first_difference(*pair)) is not None
        ]
        return 1 - len(positions) / len(pairs), median(positions) if positions else None

    def figures(self, name: str) -> list[Figure]:
        """Return all figures of a peer."""
        equal, position = self.agreement(name)
        speed = f"{name}: time of {REFERENCE} / its time, plain decoding"
        return [
            over_rounds(f"{name}: plain decoding", self.tokens_per_s(name), "tokens/s"),
            over_rounds(speed, round_ratios(self.decoding, REFERENCE, name), "x"),
            Figure(f"{name}: outputs equal to those of {REFERENCE}", 100 * equal, "%"),
            *(
                [Figure(f"{name}: first different token, median", position, "tokens")]
                if position is not None
                else []
            ),
            over_rounds(f"{name}: prefill of {CONTEXT} tokens", self.milliseconds(name, 0), "ms"),
            *(
                over_rounds(f"{name}: {width} new tokens", self.milliseconds(name, width), "ms")
                for width in WIDTHS
            ),
        ]

    def table(self) -> str:
        """Return one Markdown row per peer."""
        columns = [
            "tokens/s",
            f"x {REFERENCE}",
            "outputs equal",
            "first difference",
            f"prefill {CONTEXT}, ms",
        ]
        columns += [f"{width} new, ms" for width in WIDTHS] + [
            f"{width} / 1" for width in WIDTHS[1:]
        ]
        lines = [f"| | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
        for name in self.outputs:
            equal, position = self.agreement(name)
            times = {width: median(self.milliseconds(name, width)) for width in (0, *WIDTHS)}
            cells = [
                f"{median(self.tokens_per_s(name)):.1f}",
                f"{median(round_ratios(self.decoding, REFERENCE, name)):.2f}",
                f"{equal:.0%}",
                "" if position is None else f"token {position:g}",
                *(f"{value:.1f}" for value in times.values()),
                *(f"{times[width] / times[1]:.2f}" for width in WIDTHS[1:]),
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"


def first_difference(output: Sequence[int], expected: Sequence[int]) -> int | None:
    """Return the index of the first token that differs, one past the end included; None if there is none."""
    pairs = zip(output, expected, strict=False)
    shorter = min(len(output), len(expected))
    end = None if len(output) == len(expected) else shorter
    return next((index for index, (a, b) in enumerate(pairs) if a != b), end)


def _measure(peers: Mapping[str, Peer], requests: Sequence[Request], rounds: int) -> Results:
    outputs = {name: [peer.decode(request) for request in requests] for name, peer in peers.items()}
    decoding = take_turns(
        {name: peer.decode for name, peer in peers.items()}, requests, rounds, process_time
    )
    text = [token for request in requests for token in request.prompt_ids]
    text = (text * (1 + (CONTEXT + max(WIDTHS)) // len(text)))[: CONTEXT + max(WIDTHS)]
    context, draft = text[:CONTEXT], text[CONTEXT:]

    def timed(action: Callable[[Peer], Callable[[int], object]]) -> Seconds:
        contenders = {name: action(peer) for name, peer in peers.items()}
        return take_turns(contenders, range(REPEATS), rounds, process_time)

    def prefill(peer: Peer) -> Callable[[int], object]:
        return lambda _: peer.prefill(context)

    def verify(width: int, peer: Peer) -> Callable[[int], object]:
        return lambda _: peer.verify(draft[:width])

    forwards = {0: timed(prefill), **{width: timed(partial(verify, width)) for width in WIDTHS}}
    return Results(outputs, decoding, forwards)
