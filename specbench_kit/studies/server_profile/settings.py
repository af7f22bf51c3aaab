"""The settings of `skit profile-server`. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.core.common_options import Target, require_minutes
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import FIRST, MODELS, OUTPUT, RUN, SERVER, Option
from specbench_kit.live.connection_options import ConnectionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProfileSettings(ConnectionOptions):
    """The checked options of `skit profile-server`."""

    server: Annotated[
        str, Option("HOST:PORT of a `skit serve` that nobody else uses.", SERVER), FIRST
    ]
    to: Annotated[Path, Option("File to write the profile to, .toml.", OUTPUT), FIRST]
    target: Annotated[
        Target, Option("The server's target; the connection needs its tokenizer.", MODELS), FIRST
    ] = "auto"
    sessions: Annotated[int, Option("Largest number of concurrent sessions.", RUN), FIRST] = 24
    window_s: Annotated[
        float, Option("Seconds of measurement for each kind of load.", RUN, flag="window"), FIRST
    ] = 0.8

    minutes: Annotated[
        float | None,
        Option(
            "Minutes after which no further load begins; the fit takes at least half of all loads.",
            RUN,
        ),
        FIRST,
    ] = None

    def __post_init__(self) -> None:
        self.require_connection_options()
        require_minutes(self.minutes)
        if self.sessions < 2 or self.window_s <= 0:
            raise SkitError(
                "a server is kept busy by at least 2 --sessions, and in each --window for some time"
            )
        if self.to.suffix != ".toml":
            raise SkitError(f"{self.to} is no .toml file, by which --profile would find it")
