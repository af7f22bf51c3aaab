"""The options of `skit ab`. Imports nothing heavy."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from specbench_kit.core import common_options as common
from specbench_kit.core.addresses import is_host_and_port
from specbench_kit.core.durations import require_unit
from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import (
    DECODING,
    FIRST,
    OUTPUT,
    RUN,
    SERVER,
    Option,
    OptionValues,
    WithoutEffect,
)
from specbench_kit.core.without_effect import GREEDY, unless
from specbench_kit.decoding.constraint import BY_PROMPT, GrammarSpec, parse_constraint
from specbench_kit.live.engines.address import USAGE, ServerUnderTest, parse_server
from specbench_kit.metrics.statistics import units_for_a_verdict
from specbench_kit.serving.number_lists import numbers_of
from specbench_kit.studies.ab.summary import TYPICAL

LOAD = "Load"
GOALS = "Targets and checks"
ARRIVALS_S = 10.0
"""Seconds of arrivals in one turn under --rate, unless --turn says otherwise."""


def parse_concurrency(text: str) -> tuple[int, ...]:
    """Return the numbers in `1,4,16`."""
    if not all(part.strip().isdigit() and int(part) for part in text.split(",")):
        raise SkitError(
            f"--concurrency takes whole numbers from 1 up with commas between them, not '{text}'"
        )
    return tuple(int(part) for part in text.split(","))


def seconds_of(flag: str) -> "type[float]":
    """Return a parser of durations such as 0.2, 0.2s or 200ms, whose errors name the flag."""

    def parse(text: str) -> float:
        match = re.fullmatch(r"\s*(\d*\.?\d+)\s*(ms|s|)\s*", text)
        if not match or not float(match[1]):
            raise SkitError(f"{flag} takes a time above 0 such as 0.2, 0.2s or 200ms, not '{text}'")
        require_unit(f"{flag} {match[1]}", match[1], match[2])
        return float(match[1]) / (1000 if match[2] == "ms" else 1)

    return parse  # type: ignore[return-value]


def _files(given: OptionValues) -> str:
    servers: Any = given.get("servers", ())
    # What looks like the address of a server is told so when the settings are read.
    are_files = not any(
        "://" in server or is_host_and_port(server.rpartition("=")[2]) for server in servers
    )
    return "with result files" if are_files else ""


OF_FILES = WithoutEffect(_files, "what another tool has measured is only read; leave it out")
UNLESS_RESUMED = WithoutEffect(
    unless("resume"), "it continues a run under other conditions; give both"
)
UNLESS_CONSTRAINED = WithoutEffect(unless("constraint"), "it says what to send; give both")


@dataclass(frozen=True, slots=True)
class Load:
    """One load: requests in flight, or arrivals per second; and the requests of one turn."""

    turn: int
    concurrency: int | None = None
    rate: float | None = None

    @property
    def label(self) -> str:
        """The name of the load in files and reports."""
        return f"rate {self.rate:g}" if self.rate is not None else f"concurrency {self.concurrency}"

    @property
    def figures(self) -> int:
        """How many figures are compared of any answers: throughput is none of them where requests
        arrive at fixed times.

        The time to a reply behind thoughts is one more, of which nothing is known beforehand.
        """
        of_any = [figure for figure in TYPICAL.values() if figure != "reply"]
        return len(of_any) - (self.rate is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbSettings(common.DatasetOptions):
    """The options of one comparison, validated on construction."""

    servers: Annotated[
        tuple[str, ...],
        Option(
            "Two servers, NAME=KIND://HOST:PORT each, where KIND is chat, completions, llama-cpp, llama-cpp-chat, "
            "sglang, sglang-chat, tgi, vllm or vllm-chat, with +https for TLS and #MODEL to name a model; or NAME=FILE "
            "of AIPerf, GuideLLM, vllm bench serve or SGLang's bench_serving. The second is compared with the first.",
            argument=True,
        ),
        FIRST,
    ]
    limit: Annotated[common.Limit, FIRST, OF_FILES] = None
    minutes: Annotated[common.Minutes, OF_FILES] = None
    repeats: Annotated[
        int,
        Option(
            "Number of times that each server gets each prompt; 2 or more show its own variation.",
            RUN,
        ),
        OF_FILES,
    ] = 2
    max_new_tokens: Annotated[common.MaxNewTokens, FIRST, OF_FILES] = 128
    ignore_eos: Annotated[
        bool,
        Option(
            "Let every answer have --max-new-tokens tokens; not with chat, completions and tgi.",
            DECODING,
        ),
        OF_FILES,
    ] = False
    temperature: Annotated[
        float, Option("Sampling temperature; 0 decodes greedily.", DECODING), FIRST, OF_FILES
    ] = 0.0
    top_p: Annotated[
        float, Option("Top-p sampling; 1 disables it.", DECODING), OF_FILES, GREEDY
    ] = 1.0
    top_k: Annotated[int, Option("Top-k sampling; 0 disables it.", DECODING), OF_FILES, GREEDY] = 0
    seed: Annotated[common.Seed, OF_FILES] = 0
    constraint: Annotated[
        GrammarSpec | None,
        Option(
            "JSON schema that answers are held against: json-schema:FILE (or the schema itself), or 'dataset' for the "
            "field `schema` that each prompt then needs. The default judges the prompts that have one.",
            DECODING,
            parse=parse_constraint,
        ),
        OF_FILES,
    ] = None
    send_constraint: Annotated[
        bool,
        Option(
            "Ask both servers to write by the schema of --constraint; not with completions.",
            DECODING,
        ),
        OF_FILES,
        UNLESS_CONSTRAINED,
    ] = False
    concurrency: Annotated[
        tuple[int, ...],
        Option(
            "Requests in flight at a server, one load each: 1,4,16; the default is 1.",
            LOAD,
            parse=parse_concurrency,
        ),
        FIRST,
        OF_FILES,
    ] = ()
    rate: Annotated[
        tuple[float, ...],
        Option(
            "Arrivals per second, one load each: 2,4,8. Both servers get the same requests at the same random times.",
            LOAD,
            parse=numbers_of("--rate"),
        ),
        FIRST,
        OF_FILES,
    ] = ()
    turn: Annotated[
        int | None,
        Option(
            "Requests that a server gets before the other gets the same ones. The default is the number in flight, "
            "hence 1 at --concurrency 1, and with --rate 10 seconds of arrivals, or fewer if that gives too few turns.",
            LOAD,
        ),
        OF_FILES,
    ] = None
    until_saturated: Annotated[
        bool,
        Option(
            "Leave out the loads after the first one at which both servers are over-saturated.",
            LOAD,
        ),
        OF_FILES,
    ] = False
    warm_up: Annotated[
        int, Option("Requests to each server before each load, which do not count.", LOAD), OF_FILES
    ] = 2
    ttft_slo: Annotated[
        float | None,
        Option(
            "Time to the first token that goodput asks for, such as 200ms.",
            GOALS,
            parse=seconds_of("--ttft-slo"),
        ),
    ] = None
    tpot_slo: Annotated[
        float | None,
        Option(
            "Time per output token that goodput asks for, such as 50ms.",
            GOALS,
            parse=seconds_of("--tpot-slo"),
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Option(
            "Folder or name of a tokenizer, to count tokens at servers that do not count them.",
            SERVER,
        ),
        OF_FILES,
    ] = None
    timeout_s: Annotated[
        float,
        Option("Seconds of silence after which a request failed.", SERVER, flag="timeout"),
        OF_FILES,
    ] = 300.0
    retries: Annotated[
        int, Option("Number of times that a failed request is sent again.", SERVER), OF_FILES
    ] = 2
    server_ca: Annotated[
        Path | None,
        Option(
            "Certificates, PEM, that the servers' must be signed by, in place of the usual ones.",
            SERVER,
        ),
        OF_FILES,
    ] = None
    leave_out: Annotated[
        tuple[str, ...],
        Option(
            "Field that requests do not have, for a server that refuses it: max_tokens, stream_options, "
            "sampling_params.min_p. The server's own default holds. May be given several times.",
            SERVER,
        ),
        OF_FILES,
    ] = ()
    out: Annotated[common.Out, FIRST] = Path("results")
    resume: Annotated[common.Resume, FIRST, OF_FILES] = False
    force: Annotated[
        bool,
        Option(
            "With --resume: continue although software, machine or a server has changed.", OUTPUT
        ),
        OF_FILES,
        UNLESS_RESUMED,
    ] = False
    fail_if: Annotated[
        tuple[str, ...],
        Option(
            "Exit with 1 if this condition holds at any load: 'speedup<1.1', 'speedup.low<1', 'ttft_speedup<0.9', "
            "'identical<1', or a figure of the second server such as 'ttft.p99>200ms', 'goodput<50' or 'failed>0'. "
            "Exit with 3 if it is about time and the machine was disturbed. May be given several times.",
            GOALS,
        ),
        FIRST,
    ] = ()
    argv: tuple[str, ...] = ()
    addresses: tuple[ServerUnderTest, ...] = field(init=False, default=())
    files: tuple[tuple[str, tuple[Path, ...]], ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        require(len(self.servers) == 2, f"name two servers, not {len(self.servers)}: {USAGE}")
        for text in self.servers:
            _require_kind(text)
        is_server = ["://" in text for text in self.servers]
        require(
            all(is_server) or not any(is_server),
            "compare two servers or two files, not a server with a file",
        )
        if all(is_server):
            object.__setattr__(self, "addresses", tuple(map(parse_server, self.servers)))
        else:
            object.__setattr__(self, "files", tuple(map(_parse_files, self.servers)))
        require(
            len(set(self.names)) == 2,
            f"both servers are called {self.names[0]}: name them differently",
        )
        for flag, value, least in (
            ("--repeats", self.repeats, 1),
            ("--max-new-tokens", self.max_new_tokens, 1),
            ("--warm-up", self.warm_up, 0),
            ("--retries", self.retries, 0),
            ("--turn", self.turn if self.turn is not None else 1, 1),
        ):
            require(value >= least, f"{flag} must be at least {least}, not {value}")
        common.require_minutes(self.minutes)
        require(self.timeout_s > 0, f"--timeout must be above 0, not {self.timeout_s:g}")
        require(all(0 < rate < 1e6 for rate in self.rate), "--rate takes numbers above 0")
        require(not (self.rate and self.concurrency), "give --concurrency or --rate, not both")
        require(
            self.constraint is None or self.constraint.kind in ("json-schema", BY_PROMPT),
            "--constraint takes json-schema:FILE or dataset here: answers are held against a JSON schema",
        )
        loads = self.rate or self.concurrency
        require(len(set(loads)) == len(loads), "a load is given twice: name each once")
        is_sweep = len(loads) > 1 and list(loads) == sorted(loads)
        require(
            is_sweep or not self.until_saturated,
            "--until-saturated needs several loads from low to high, such as --concurrency 1,4,16 or --rate 1,2,4",
        )
        require(
            0 <= self.temperature < 100 and 0 < self.top_p <= 1 and self.top_k >= 0,
            "sampling is out of range",
        )

    @property
    def names(self) -> tuple[str, str]:
        """The names of both servers."""
        first, second = [address.name for address in self.addresses] or [
            name for name, _ in self.files
        ]
        return first, second

    def loads(self, prompts: int) -> list[Load]:
        """Return the loads, given the number of prompts."""
        if not self.rate:
            return [
                Load(self.turn or count, concurrency=count) for count in self.concurrency or (1,)
            ]
        # Turns are short enough for a verdict.
        figures = sum(Load(1, rate=rate).figures for rate in self.rate)
        most = max(1, prompts // units_for_a_verdict(figures))
        return [
            Load(self.turn or max(1, min(most, round(ARRIVALS_S * rate))), rate=rate)
            for rate in self.rate
        ]

    def described(self) -> OptionValues:
        """Return the settings that decide the result, as `run.json` holds them."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "ignore_eos": self.ignore_eos,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
            **({"constraint": self.constraint.spec} if self.constraint else {}),
            **({"send_constraint": True} if self.send_constraint else {}),
            "limit": self.limit,
            "repeats": self.repeats,
            "concurrency": list(self.concurrency or (() if self.rate else (1,))),
            "rate": list(self.rate),
            "turn": self.turn,
            **({"until_saturated": True} if self.until_saturated else {}),
            "warm_up": self.warm_up,
            "ttft_slo": self.ttft_slo,
            "tpot_slo": self.tpot_slo,
            "tokenizer": self.tokenizer and Path(self.tokenizer).name,
            "retries": self.retries,
            "timeout_s": self.timeout_s,
            **({"leave_out": list(self.leave_out)} if self.leave_out else {}),
        }


def _require_kind(text: str) -> None:
    """Raise SkitError for the address of a server without its kind."""
    require(not is_host_and_port(text), f"'{text}' names no kind of server: {USAGE}")
    name, _, address = text.partition("=")
    require(
        not is_host_and_port(address),
        f"'{text}' says no kind of server: write {name}=llama-cpp://{address}, or another kind of `skit list engines`",
    )


def _parse_files(text: str) -> tuple[str, tuple[Path, ...]]:
    name, equals, paths = text.partition("=")
    require(
        bool(equals and name and paths),
        f"'{text}' names no server and no file: {USAGE}, or NAME=FILE",
    )
    return name, tuple(Path(path) for path in paths.split(","))
