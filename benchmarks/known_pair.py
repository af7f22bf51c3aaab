"""The known pair on its GGUF files beside llama.cpp on the same files: its server from the package index, and a library
that was built for this processor.

Optional: the server needs xllamacpp, the library llama-cpp-python, installed by `pip install --no-binary
llama-cpp-python llama-cpp-python`. Without the library the peer is what the package index has, built for AVX2.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from time import perf_counter

import torch

from benchmarks import llama_library
from benchmarks.common import (
    AUTOREGRESSIVE,
    Bound,
    Figure,
    Outcome,
    Seconds,
    Setting,
    Skipped,
    over_rounds,
    take_turns,
)
from benchmarks.llama_server import MODES, LlamaServer, draft_file, require_server, target_file
from benchmarks.llama_worker import LlamaWorker
from benchmarks.peer_models import Kit
from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.loading import load
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.draft_library import AUTO, HEAD, find_own, named
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.models.runner import Runner
from specbench_kit.studies.conversations import Conversation

PAIR = "qwen2.5-coder"
EXACT = "native-blocks"
DRAFTS = {
    EXACT: "",
    "native-blocks+native-4bit": ", draft in 4 bits",
    "native-blocks+native-4bit-64k": ", draft in 4 bits, first 65,536 tokens",
}
"""What is said of the draft model of each pair of executors."""
POLICIES = ("fixed-k:k=4", "threshold:max_draft=8")
HEAD_POLICIES = (
    "eagle:k=2",
    "eagle:k=3",
    "eagle:k=4",
    "fixed-k:k=4,drafter=first-of.match=3+second=head",
)
"""With the target's own head, where it has one."""
CONTEXT = 200
WIDTHS = (1, 2, 5, 9, 17)
REPEATS = 5
DRAFTED = 4
BUILT = "llama.cpp built here"
NO_LIBRARY = (
    "llama-cpp-python is not installed, whose library pip builds for this processor: llama.cpp is the server of the "
    "package index alone, which is built for AVX2."
)
Decode = Callable[[Request], int]
"""Answers a request and returns the number of tokens."""


def run(setting: Setting) -> Outcome:
    """Time whole answers to HumanEval's prompts in turns, and forwards of several tokens after a context."""
    require_server()
    try:
        pairs = {executor: load_pair(PAIR, device="cpu", executor=executor) for executor in DRAFTS}
        head = find_own(pairs[EXACT].target.source, "head")
        others = [named(AUTO)] if head else []
        pairs[EXACT] = load_pair(PAIR, device="cpu", executor=EXACT, others=others)
    except SkitError as error:
        raise Skipped(str(error)) from error
    exact = pairs[EXACT]
    requests = human_eval(setting, exact)
    capacity = (
        max(CONTEXT, *(len(request.prompt_ids) for request in requests))
        + setting.max_new_tokens
        + 64
    )
    runners = {executor: pair.all_runners(1, capacity) for executor, pair in pairs.items()}
    kit = {
        "kit, plain": _decoder(exact, runners[EXACT], AUTOREGRESSIVE),
        **{
            f"kit, {policy}": _decoder(exact, runners[EXACT], policy)
            for policy in HEAD_POLICIES
            if head
        },
        **{
            f"kit, {policy}{said}": _decoder(exact, runners[executor], policy)
            for executor, said in DRAFTS.items()
            for policy in POLICIES
        },
    }
    servers = {
        f"llama.cpp, {mode}": LlamaServer(exact, capacity, kind) for mode, kind in MODES.items()
    }
    peers: dict[str, Decode] = {name: server.answer for name, server in servers.items()}
    library, notes = None, [NO_LIBRARY]
    if llama_library.is_installed():
        library = LlamaWorker(
            target_file(exact), draft_file(exact), capacity, torch.get_num_threads()
        )
        peers |= _library(exact, library)
        notes = [f"{BUILT} has {llama_library.build()}."]
    tokens: dict[str, list[int]] = {
        name: [decode(request) for request in requests] for name, decode in (kit | peers).items()
    }
    seconds = take_turns(kit | peers, requests, setting.rounds)
    plain, text = servers["llama.cpp, plain"], _text(requests)
    own_ms, their_ms = (
        _forwards(exact, runners[EXACT]["target"], text),
        _server_forwards(plain, text[:CONTEXT]),
    )
    figures = [*_answers(tokens, seconds), *_widths(own_ms, their_ms)]
    if library:
        context, behind = text[:CONTEXT], text[CONTEXT:]
        figures += _beside(own_ms, library.forwards(context, behind, WIDTHS, REPEATS))
    return Outcome(
        f"{PAIR} on its files beside llama.cpp, {torch.get_num_threads()} threads", figures, notes
    )


def _library(pair: Pair, library: LlamaWorker) -> dict[str, Decode]:
    """Return what decodes with the library, plainly and with the draft model."""

    def decode(drafted: int) -> Decode:
        return lambda request: library.answer(
            request.prompt_ids, request.max_new_tokens, pair.eos_ids, drafted
        )

    return {
        f"{BUILT}, plain": decode(0),
        f"{BUILT}, the draft model, {DRAFTED} tokens": decode(DRAFTED),
    }


def _beside(
    own_ms: Mapping[int, Sequence[float]], their_ms: Mapping[int, Sequence[float]]
) -> list[Figure]:
    """Return the forwards of the library, and how much faster the kit's are."""
    figures = [over_rounds(f"{BUILT}: {_label(w)}", their_ms[w], "ms") for w in their_ms]
    return figures + [
        Figure(
            f"{BUILT} / kit: {_label(width)}", median(their_ms[width]) / median(own_ms[width]), "x"
        )
        for width in their_ms
    ]


def human_eval(setting: Setting, pair: Pair) -> list[Request]:
    dataset = load("humaneval", data_dir=None, allow_sample=True, limit=setting.prompts, seed=0)
    talks = (
        Conversation(prompt, pair.tokenizer, setting.max_new_tokens) for prompt in dataset.prompts
    )
    return [request for talk in talks if (request := talk.next_request()) is not None]


def _text(requests: Sequence[Request]) -> list[int]:
    length, text = (
        CONTEXT + max(WIDTHS),
        [token for request in requests for token in request.prompt_ids],
    )
    return (text * (1 + length // len(text)))[:length]


def _decoder(pair: Pair, runners: Mapping[str, Runner], method: str) -> Decode:
    return lambda request: answer_all(pair, runners, method, [request])


def answer_all(
    pair: Pair, runners: Mapping[str, Runner], method: str, requests: Sequence[Request]
) -> int:
    """Answer some requests together and return the number of tokens."""
    setup = DecodingSetup(eos_ids=pair.eos_ids, batch_size=len(requests))
    heads = {name: runner for name, runner in runners.items() if name.startswith(HEAD)}
    loop = local_loop(
        parse_method(method), runners["target"], runners["draft"], setup=setup, others=heads
    )
    for request in requests:
        loop.submit(request)
    records = []
    while not loop.idle:
        records += loop.step()
    return sum(len(record.output_ids) for record in records)


def _forwards(pair: Pair, runner: Runner, text: Sequence[int]) -> dict[int, list[float]]:
    """Return milliseconds of forwards by their number of tokens; under 0 those of a prompt."""
    peer = Kit(runner.executor, pair.eos_ids)
    times: dict[int, list[float]] = {0: [], **{width: [] for width in WIDTHS}}
    for _ in range(REPEATS):
        times[0].append(_timed(lambda: peer.prefill(text[:CONTEXT])))
        for width in WIDTHS:
            times[width].append(_timed(partial(peer.verify, text[CONTEXT : CONTEXT + width])))
    return times


def _server_forwards(server: LlamaServer, context: Sequence[int]) -> dict[int, list[float]]:
    """Return milliseconds of a prompt, under 0, and of a token behind it, under 1, by the server's own clock."""
    timings = [server.complete(context, 17)["timings"] for _ in range(REPEATS)]
    return {
        0: [timing["prompt_ms"] for timing in timings],
        1: [timing["predicted_per_token_ms"] for timing in timings],
    }


def _timed(action: Callable[[], object]) -> float:
    started_s = perf_counter()
    action()
    return 1000 * (perf_counter() - started_s)


def _answers(tokens: Mapping[str, Sequence[int]], seconds: Seconds) -> list[Figure]:
    """Return milliseconds per token of whole answers, and how much faster the best policy is than llama.cpp."""
    cost = {
        name: [1000 * sum(row) / sum(tokens[name]) for row in rows]
        for name, rows in seconds.items()
    }
    figures = [
        over_rounds(f"whole answers: {name}", values, "ms/token") for name, values in cost.items()
    ]
    best, plain = (
        min(own, key=lambda name: median(cost[name]))
        for own in (_of("kit", cost), _of("llama.cpp", cost))
    )
    ratio = [theirs / own for theirs, own in zip(cost[plain], cost[best], strict=True)]
    return [*figures, over_rounds(f"{plain} / {best}", ratio, "x", Bound(least=1.5))]


def _label(width: int) -> str:
    return f"{width} new tokens" if width else f"a prompt of {CONTEXT} tokens"


def _of(peer: str, names: Mapping[str, object]) -> list[str]:
    return [name for name in names if name.startswith(peer)]


def _widths(
    own_ms: Mapping[int, Sequence[float]], their_ms: Mapping[int, Sequence[float]]
) -> list[Figure]:
    figures = [over_rounds(f"kit: {_label(width)}", own_ms[width], "ms") for width in own_ms]
    figures += [
        over_rounds(f"llama.cpp: {_label(width)}", their_ms[width], "ms") for width in their_ms
    ]
    prompt, one = (median(their_ms[width]) for width in (0, 1))
    bounds = {0: (prompt, 1.0), 1: (one, 1.0), 5: (one, 1.2)}
    for width, (theirs, most) in bounds.items():
        label = f"kit: {_label(width)} / llama.cpp: {_label(min(width, 1))}"
        figures.append(Figure(label, median(own_ms[width]) / theirs, "x", Bound(most=most)))
    return figures
