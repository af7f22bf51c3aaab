"""`skit --help` in groups, and `skit help`."""

from command_line import skit

from specbench_kit.cli.commands import commands, commands_by_group


def test_every_command_stands_in_one_group_of_the_help() -> None:
    lines = skit("--help").stdout.splitlines()
    titles = [f"{title}:" for title in commands_by_group()]
    assert [line for line in lines if line in titles] == titles
    named = [name for entries in commands_by_group().values() for name in entries]
    assert sorted(named) == sorted(commands.all())
    shown = [
        line.split()[0]
        for line in lines[lines.index(titles[0]) :]
        if line.startswith("  ") and line[2] != " "
    ]
    assert shown == named


def test_help_of_a_command_is_what_the_command_says_itself() -> None:
    assert skit("help", "tune").stdout == skit("tune", "--help").stdout
    assert skit("help").stdout == skit("--help").stdout
    refused = skit("help", "tunes")
    assert (refused.returncode, refused.stderr) == (
        2,
        "error: no command 'tunes' (did you mean 'tune'?); skit --help lists all commands\n",
    )
