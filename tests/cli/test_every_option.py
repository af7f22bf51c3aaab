"""Every option moves an output, or the command says why not: one option at a time, on tiny real inputs.

The tables are in `option_tables`, and `option_cases.py` says how to read them. An option without a line in its
command's table fails a test by its name.
"""

from collections.abc import Iterator

import pytest
from command_line import TinyPair
from option_cases import (
    OptionCase,
    OptionRuns,
    read_tables,
    without_pictures,
    without_waiting,
)
from plug_ins import of_the_kit

from specbench_kit.cli.commands import commands
from specbench_kit.cli.group import load_command
from specbench_kit.models.executors.library import load_narrow_library

TABLES = read_tables()
EVERYWHERE = {
    "--config": "reads the options of this table from a file, which test_options_and_files.py tries",
    "--save-config": "writes the options of this table to a file, which test_options_and_files.py tries",
    "--help-all": "prints the help, which test_command_help.py reads",
}
"""Options of every command, and where they are tried."""


def options_of(command: str) -> set[str]:
    """The long names of all options of a command, and the names of its arguments."""
    names = set()
    for parameter in load_command(command).params:
        is_argument = parameter.param_type_name == "argument"
        names.add(str(parameter.name) if is_argument else max(parameter.opts, key=len))
    return names


@pytest.mark.parametrize("command", of_the_kit(commands))
def test_every_option_is_in_the_table_of_its_command(command: str) -> None:
    table, options = TABLES[command], options_of(command) - EVERYWHERE.keys()
    assert sorted(options - set(table.options)) == [], (
        "has neither a case nor a reason why it cannot be tried"
    )
    assert sorted(set(table.options) - options) == [], "is no option of the command"
    tried = {case.option for case in table.cases}
    assert sorted(tried & table.exempt.keys()) == [], "is tried and exempt"
    assert all(len(reason.split()) >= 3 for reason in table.exempt.values())


def _cases() -> list[object]:
    return [
        pytest.param(case, id=case.name, marks=[pytest.mark.nightly] if case.nightly else [])
        for table in TABLES.values()
        for case in table.cases
    ]


@pytest.fixture(scope="module")
def runs(tiny: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OptionRuns]:
    from option_inputs import write_inputs

    models = {"target": str(tiny.target), "draft": str(tiny.draft)}
    with (
        without_pictures(),
        without_waiting(),
        pytest.MonkeyPatch.context() as environment,
    ):
        # Datasets are the bundled samples here, also where whoever runs the tests has the whole ones.
        environment.delenv("SKIT_DATA_DIR", raising=False)
        inputs = write_inputs(tmp_path_factory.mktemp("inputs"), tiny)
        yield OptionRuns(tmp_path_factory.mktemp("runs"), models | inputs)


@pytest.mark.slow
@pytest.mark.parametrize("case", _cases())
def test_an_option_changes_the_result_or_is_refused(case: OptionCase, runs: OptionRuns) -> None:
    if case.narrow and load_narrow_library() is None:
        pytest.skip("no processor with AVX512-BF16, or no C++ compiler")
    table = TABLES[case.command]
    changed = runs.changed(table, case)
    assert "Traceback" not in changed.stderr
    if case.says:
        assert changed.exit == 2, changed.stderr
        assert case.says in changed.stderr.splitlines()[-1]
        if not case.after_work:
            assert changed.shown("files") == "", "a refusal comes before any work"
        return
    base = runs.base(table, case)
    if case.shows != "exit":
        assert base.exit == 0, base.stderr
        assert changed.exit == 0, changed.stderr
    is_changed = changed.shown(case.shows) != base.shown(case.shows)
    assert is_changed, f"{case.option} changes nothing in {case.shows}"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("command", TABLES)
def test_a_command_that_runs_again_shows_the_same(command: str, runs: OptionRuns) -> None:
    """Otherwise a change could come from the clock."""
    table = TABLES[command]
    for name, base in table.bases.items():
        first, second = (runs.run(command, base["arguments"], again=True) for _ in range(2))
        shown = {case.shows for case in table.cases if case.base == name and not case.says} - {
            "stderr"
        }
        for view in shown:
            assert first.shown(view) == second.shown(view), f"{view} of {command} {name}"
