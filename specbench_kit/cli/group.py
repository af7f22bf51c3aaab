"""The `skit` command: a group of all commands. Only the module of the command that runs is imported,
so that `skit --help` is quick.
"""

from typing import Any

from typer.core import TyperCommand, TyperGroup

from specbench_kit.cli.commands import commands, commands_by_group
from specbench_kit.cli.usage import UsageError, usage_problem
from specbench_kit.core.errors import SkitError, did_you_mean


class CommandGroup(TyperGroup):
    """All commands by name; the options of a command are built when it is resolved to be run."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return [name for entries in commands_by_group().values() for name in entries]

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Return a command without its options, which are not read before it is run."""
        entry = commands.all().get(cmd_name)
        return entry and TyperCommand(cmd_name, help=entry.summary)

    def get_params(self, ctx: Any) -> Any:
        """Return the options of `skit` itself, with False for a flag that is left out.

        Typer's completion flags default to None, which Typer imports pydantic to convert.
        """
        parameters = super().get_params(ctx)
        for parameter in parameters:
            if parameter.default is None and getattr(parameter, "is_flag", False):
                parameter.default = False
        return parameters

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Process the options before the command's name; raise SkitError for one that does not
        exist.

        `skit help COMMAND` is `skit COMMAND --help`.
        """
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            raise SkitError(
                f"skit: {usage_problem(error)}; skit --help lists all commands"
            ) from error

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in groups, each summary whole, where Typer cuts it at the end of the
        line.
        """
        width = max(map(len, commands.all()))
        for title, entries in commands_by_group().items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), entry.summary) for name, entry in entries.items()]
                )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is run, with its options; raise SkitError if there is none of
        that name.
        """
        known = commands.all()
        if args[0] not in known:
            if reason := commands.left_out().get(args[0]):
                raise SkitError(reason)
            raise SkitError(
                f"no command '{args[0]}'{did_you_mean(args[0], known)}; skit --help lists all commands"
            )
        name, command, arguments = super().resolve_command(ctx, args)
        return name, command and load_command(command.name or ""), arguments


def load_command(name: str) -> TyperCommand:
    """Return a command with its options, which imports its module."""
    from specbench_kit.cli.command import Command

    entry = commands.get(name)
    help_text = "\n\n".join(filter(None, (entry.summary, entry.details)))
    return Command(name, entry.load(), help_text, entry.example)
