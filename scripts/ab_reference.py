"""Produce results/reference/ab: python scripts/ab_reference.py, with the package xllamacpp.

Two servers of llama.cpp on the same file, one of them plain: beside its own n-gram speculation on SmolLM2, and beside
its drafting on the known pair. Each is a process of its own, and one `skit ab` compares them.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from keep_result import keep

from specbench_kit.core.user_data import user_folder

SKIT = [sys.executable, "-c", "from specbench_kit.cli.main import main; main()"]
BUILD, OUT = Path("build/reference/ab"), Path("results/reference/ab")
SAYS = "listening on "
NGRAM, DRAFTING = "ngram", "drafting"


@dataclass(frozen=True)
class Comparison:
    """A plain server and one that speculates, on the same file, and what both are asked."""

    folder: Path
    target: str
    speculation: str
    threads: int
    slots: int
    asked: tuple[str, ...]
    draft: str = ""


COMPARISONS = {
    "smollm2": Comparison(
        OUT,
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        NGRAM,
        threads=1,
        slots=4,
        asked=(
            *("--dataset", "gsm8k", "--limit", "24", "--max-new-tokens", "48"),
            *("--concurrency", "1,4"),
        ),
    ),
    "qwen2.5-coder": Comparison(
        OUT / "qwen2.5-coder",
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        DRAFTING,
        threads=2,
        slots=1,
        asked=("--dataset", "humaneval", "--limit", "12", "--max-new-tokens", "64"),
        draft="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    ),
}


def serve(options: argparse.Namespace) -> None:
    """Serve a file until this process is ended."""
    import xllamacpp

    asked = xllamacpp.CommonParams()
    asked.model.path = str(options.serve)
    asked.n_ctx, asked.n_parallel, asked.port, asked.verbosity = (
        2048 * options.slots,
        options.slots,
        0,
        -1,
    )
    asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = options.threads
    asked.endpoint_metrics = True
    asked.model_alias = {options.serve.name}  # not the path, which the run would keep
    kinds = xllamacpp.common_speculative_type
    if options.speculation == NGRAM:
        asked.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        lengths = asked.speculative.ngram_simple
        lengths.size_n, lengths.size_m = 3, 8
    if options.speculation == DRAFTING:
        asked.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft = asked.speculative.draft
        draft.mparams.path = str(options.draft)
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = options.threads
    server = xllamacpp.Server(asked)
    print(f"{SAYS}{server.listening_address}", flush=True)
    while True:
        time.sleep(60)


@contextmanager
def server(of: Comparison, speculation: str = "") -> Iterator[str]:
    """Start a server and yield its host and port."""
    files = [path for path in (of.target, of.draft) if path]
    target, *draft = [str(user_folder("models") / name) for name in files]
    arguments = ["--serve", target, "--threads", str(of.threads), "--slots", str(of.slots)]
    if speculation:
        arguments += ["--speculation", speculation]
        arguments += ["--draft", *draft] if draft else []
    process = subprocess.Popen(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = next((line for line in process.stdout if line.startswith(SAYS)), None)
        assert said is not None, "the server did not start"
        yield said.removeprefix(SAYS).strip().removeprefix("http://")
    finally:
        process.terminate()
        process.wait()


def compare(name: str) -> None:
    """Measure a comparison, and keep its result beside its page."""
    of, runs = COMPARISONS[name], BUILD / name
    shutil.rmtree(runs, ignore_errors=True)
    with ExitStack() as running:
        plain = running.enter_context(server(of))
        speculating = running.enter_context(server(of, of.speculation))
        servers = (
            f"plain=llama-cpp-chat://{plain}",
            f"{of.speculation}=llama-cpp-chat://{speculating}",
        )
        skit("ab", *servers, *of.asked, "--out", str(runs))
    (run,) = runs.glob("*/run.json")
    keep(run.parent, of.folder)
    skit("report", str(of.folder), "--format", "md,csv,svg")


def skit(*arguments: str) -> None:
    subprocess.run([*SKIT, *arguments], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=COMPARISONS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--draft", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--speculation", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--slots", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options)
    else:
        for name in COMPARISONS:
            if options.only in (None, name):
                compare(name)


if __name__ == "__main__":
    main()
