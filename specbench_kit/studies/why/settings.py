"""The options of `skit why`. Imports nothing heavy."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from specbench_kit.core import common_options as common
from specbench_kit.core.errors import require
from specbench_kit.core.option import (
    DECODING,
    FIRST,
    RUN,
    SERVER,
    Option,
    OptionValues,
    WithoutEffect,
)
from specbench_kit.live.engines.address import ServerUnderTest, parse_server
from specbench_kit.studies.ab.settings import parse_concurrency

PLAIN, SPECULATING = "plain", "spec"
"""Names of servers and folders that were given without one, in the order in which they are given."""


def _folders(given: OptionValues) -> str:
    sources: Any = given.get("sources", ())
    return "" if any("://" in source for source in sources) else "with folders of results"


OF_FOLDERS = WithoutEffect(_folders, "they are only read; leave it out")
NAMED = re.compile(r"[A-Za-z][A-Za-z0-9._-]*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhySettings(common.DatasetOptions):
    """The options of one diagnosis, validated on construction."""

    sources: Annotated[
        tuple[str, ...],
        Option(
            "A running server with its speculation on, KIND://HOST:PORT as in skit ab; or one without speculation and "
            "one with it, plain=KIND://HOST:PORT spec=KIND://HOST:PORT; or one or two folders of skit ab or bench.",
            argument=True,
        ),
        FIRST,
    ]
    limit: Annotated[common.Limit, FIRST, OF_FOLDERS] = 8
    max_new_tokens: Annotated[common.MaxNewTokens, FIRST, OF_FOLDERS] = 96
    seed: Annotated[common.Seed, OF_FOLDERS] = 0
    concurrency: Annotated[
        tuple[int, ...],
        Option(
            "Numbers of requests in flight together that are tried besides one at a time: 4,16.",
            RUN,
            parse=parse_concurrency,
        ),
        FIRST,
        OF_FOLDERS,
    ] = ()
    ignore_eos: Annotated[
        bool,
        Option(
            "Let every answer have --max-new-tokens tokens; not with chat, completions and tgi.",
            DECODING,
        ),
        OF_FOLDERS,
    ] = False
    timeout_s: Annotated[
        float,
        Option("Seconds of silence after which a request failed.", SERVER, flag="timeout"),
        OF_FOLDERS,
    ] = 300.0
    server_ca: Annotated[
        Path | None,
        Option(
            "Certificates, PEM, that the servers' must be signed by, in place of the usual ones.",
            SERVER,
        ),
        OF_FOLDERS,
    ] = None
    out: Annotated[common.Out, FIRST] = Path("results")
    argv: tuple[str, ...] = ()
    addresses: tuple[ServerUnderTest, ...] = field(init=False, default=())
    folders: tuple[Path, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        require(
            len(self.sources) in (1, 2),
            f"name one server or folder, or two, not {len(self.sources)}",
        )
        is_server = ["://" in text for text in self.sources]
        require(all(is_server) or not any(is_server), "name servers or folders, not one of each")
        names = (SPECULATING,) if len(self.sources) == 1 else (PLAIN, SPECULATING)
        if all(is_server):
            named = [
                text if NAMED.match(text) else f"{name}={text}"
                for name, text in zip(names, self.sources, strict=True)
            ]
            object.__setattr__(self, "addresses", tuple(map(parse_server, named)))
            found = {address.name for address in self.addresses}
            require(len(found) == len(named), "both servers have one name: name them differently")
        else:
            object.__setattr__(self, "folders", tuple(map(Path, self.sources)))
        require(
            self.limit is None or self.limit > 0, f"--limit must be at least 1, not {self.limit}"
        )
        require(
            self.max_new_tokens >= 2,
            f"--max-new-tokens must be at least 2, not {self.max_new_tokens}: rounds come after the first token",
        )
        require(self.timeout_s > 0, f"--timeout must be above 0, not {self.timeout_s:g}")

    def described(self) -> OptionValues:
        """Return the settings that decide the result, as `run.json` holds them."""
        if self.folders:
            return {}
        return {
            "max_new_tokens": self.max_new_tokens,
            "ignore_eos": self.ignore_eos,
            "seed": self.seed,
            "limit": self.limit,
            "concurrency": list(self.concurrency),
            "temperature": 0.0,
        }
