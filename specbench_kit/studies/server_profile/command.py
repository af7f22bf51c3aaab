"""`skit profile-server`: how long a server's verifications and messages take."""

from typing import Annotated

from specbench_kit.cli.common import say
from specbench_kit.core.option import FIRST
from specbench_kit.studies.server_profile.settings import ServerProfileSettings


def profile_server(
    settings: Annotated[
        ServerProfileSettings, FIRST.of("server_token", "server_ca", "server_wait")
    ],
) -> None:
    """Profile the server and print the result."""
    from rich.console import Console

    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.server_profile.run import profile_server as run

    with stepping_bar() as report:
        outcome = run(settings, report)
    console = Console()
    say(console, outcome.text)
    for doubt in outcome.doubts:
        say(console, doubt, style="bold red")
    say(console, f"profile: {settings.to}")
