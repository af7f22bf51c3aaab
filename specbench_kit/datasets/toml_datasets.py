"""Datasets that are defined by a TOML file: its columns, its prompt template and its answers.

Every file in `datasets/definitions/` is one dataset, named after the file. A template inserts columns by name:
`{question}`, `{translation.de}` for a column inside a column, `{choices:lettered}` for a list as lines "A. ...", and
`{index}` for the number of the row, from 0. The text is data: a template cannot call or compute anything. The page
`docs/recipes/dataset.md` has a table of all keys.
"""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line
from specbench_kit.core.typed_json import convert
from specbench_kit.datasets.answers import LETTERS, Gold, RuleName
from specbench_kit.datasets.base import Dataset, Hub, Prompt, Row, TrainSplit, datasets
from specbench_kit.datasets.rows import (
    COMPRESSED,
    TABLE_ENDINGS,
    prompt_files,
    schema_text,
    system_text,
    user_turns,
)
from specbench_kit.datasets.tool_messages import recorded_turns, tools_text

DEFINITIONS = Path(__file__).parent / "definitions"
PLACEHOLDER = re.compile(r"\{([\w.]+)(:lettered)?\}")


class PromptTemplate(Struct, frozen=True, forbid_unknown_fields=True):
    """The rule that makes a prompt of a row, in one of three forms.

    `text` is the template of the only turn, `turns` has a template for each turn, and `turn_columns` names columns that
    hold whole conversations, of which a row has one. `first_words` cuts the text to that many words and leaves out a
    row that has fewer. `end_mark` ends the text with exactly one such mark. `merged_categories` lists, by a category's
    new name, the names in the data. `schema_column` holds the JSON schema of a row's answers, an object or its text,
    and `tools_column` descriptions of the tools of a conversation.
    """

    id: str
    category: str
    text: str = ""
    turns: tuple[str, ...] = ()
    turn_columns: tuple[str, ...] = ()
    chat: bool = True
    first_words: Annotated[int, Meta(ge=1)] | None = None
    end_mark: str = ""
    merged_categories: dict[str, frozenset[str]] = {}
    schema_column: str = ""
    tools_column: str = ""

    def __post_init__(self) -> None:
        forms = [name for name in ("text", "turns", "turn_columns") if getattr(self, name)]
        if len(forms) != 1:
            raise ValueError(
                f"give one of text, turns and turn_columns, not {' and '.join(forms) or 'none of them'}"
            )
        if (self.first_words is not None or self.end_mark) and not self.text:
            raise ValueError(f"first_words and end_mark go with text, not with {forms[0]}")
        if len(self.turns) > 1 and not self.chat:
            raise ValueError("a text to continue (chat = false) has one turn")

    def read_turns(self, row: Row, index: int) -> tuple[str, ...] | None:
        """Return the turns of a row, or None for a text that has fewer words than the template asks
        for.
        """
        if self.turn_columns:
            said = row[self._turn_column(row)]
            recorded = recorded_turns(said)
            return recorded.turns if recorded else user_turns(said)
        if self.turns:
            return tuple(fill(turn, row, index) for turn in self.turns)
        text = fill(self.text, row, index)
        if self.first_words is not None:
            start = re.match(rf"\s*(?:\S+\s+){{{self.first_words - 1}}}\S+", str(text))
            return (start.group().strip(),) if start else None
        if self.end_mark:
            text = str(text).rstrip(f" {self.end_mark}") + self.end_mark
        return (text,)

    def script(self, row: Row) -> tuple[str, ...]:
        """Return the messages of each turn of a recorded conversation with tools, none of others."""
        recorded = recorded_turns(row[self._turn_column(row)]) if self.turn_columns else None
        return recorded.script if recorded else ()

    def system(self, row: Row) -> str:
        """Return what the system says before the first turn of a conversation, "" if nothing."""
        return system_text(row[self._turn_column(row)]) if self.turn_columns else ""

    def _turn_column(self, row: Row) -> str:
        """Return the column that holds a row's conversation; raise ValueError if two hold different
        ones.
        """
        filled = [name for name in self.turn_columns if row.get(name)]
        chosen = filled[0] if filled else self.turn_columns[-1]
        for other in filled[1:]:
            same_turns = user_turns(row[other]) == user_turns(row[chosen])
            if not same_turns or system_text(row[other]) not in ("", system_text(row[chosen])):
                raise ValueError(
                    f"'{chosen}' and '{other}' of turn_columns are both set and differ, and one of them would be "
                    f'dropped: where each holds a turn, write turns = ["{{{chosen}}}", "{{{other}}}"] instead'
                )
        return chosen


class AnswerColumns(Struct, frozen=True, forbid_unknown_fields=True):
    """The columns that hold right answers, and the rule of `datasets/answers.py` that reads an
    answer from a text.

    `answer:lettered` turns an index from 0 into a letter.
    """

    rule: RuleName
    columns: tuple[str, ...]

    def gold(self, row: Row) -> Gold | None:
        """Return the right answers of a row; None if its columns are missing or empty."""
        texts: list[str] = []
        for column in self.columns:
            path, _, lettered = column.partition(":")
            value: object = row
            for name in path.split("."):
                value = value.get(name) if isinstance(value, dict) else None
            if lettered:
                value = (
                    LETTERS[value]
                    if isinstance(value, int) and value in range(len(LETTERS))
                    else None
                )
            texts += [
                str(text)
                for text in (value if isinstance(value, (list, tuple)) else [value])
                if text
            ]
        return Gold(self.rule, tuple(texts)) if texts else None


class WithheldRows(Struct, frozen=True, forbid_unknown_fields=True):
    """The beginning of a turn that stands for a withheld prompt, which is refused with the
    advice.
    """

    begins: str
    advice: str


class ExampleRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the data and the first turn, or all turns, of what becomes of it: a test compares
    them.
    """

    row: Row
    text: str = ""
    turns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.text) == bool(self.turns):
            raise ValueError("give text, which is the first turn, or turns, which are all of them")


class DatasetDefinition(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of one TOML file: the attributes of `Dataset`, and how a row is read.

    Rows are left out unless the columns of `only` have one of the listed values and those of
    `only_empty` are false, empty or null.
    """

    summary: str
    paper: str
    sample: str
    prompt: PromptTemplate
    local: str | None = None
    hub: Hub | None = None
    train: TrainSplit | None = None
    only: dict[str, frozenset[str]] = {}
    only_empty: tuple[str, ...] = ()
    answer: AnswerColumns | None = None
    placeholder: WithheldRows | None = None
    example: ExampleRow | None = None

    def __post_init__(self) -> None:
        for local in (self.local, self.train.local if self.train else None):
            if local is not None and is_table(local):
                readable = prompt_files('{"column": "..."}')
                raise ValueError(
                    f"'{local}' is not a file of rows: give {readable}, or a .txt file"
                )

    def check_example(self) -> None:
        """Raise SkitError if the row of the example does not become the turns that it states."""
        if self.example is None:
            return
        try:
            prompt = self.read_prompt(self.example.row, 0)
        except KeyError as error:
            raise SkitError(
                f"the row of [example] has no column {error}, which the definition reads"
            ) from error
        except (AttributeError, TypeError, ValueError) as error:
            raise SkitError(f"the row of [example] cannot be read: {error}") from error
        if prompt is None:
            raise SkitError(
                "the definition leaves out the row of [example]: give one that becomes a prompt"
            )
        stated = self.example.turns or (self.example.text,)
        turns = prompt.turns if self.example.turns else prompt.turns[:1]
        if turns != stated:
            raise SkitError(f"the row of [example] becomes {list(turns)}, not {list(stated)}")

    def read_prompt(self, row: Row, index: int) -> Prompt | None:
        """Return the prompt of a row, or None for a row that is left out; raise KeyError for a
        missing column.
        """
        if any(str(row[column]) not in values for column, values in self.only.items()):
            return None
        if any(row[column] for column in self.only_empty):
            return None
        turns = self.prompt.read_turns(row, index)
        if turns is None:
            return None
        system = self.prompt.system(row)
        if self.placeholder and any(
            str(said).startswith(self.placeholder.begins) for said in (system, *turns)
        ):
            raise ValueError(self.placeholder.advice)
        category = str(fill(self.prompt.category, row, index))
        for merged, categories in self.prompt.merged_categories.items():
            if category in categories:
                category = merged
        identity = str(fill(self.prompt.id, row, index))
        gold = self.answer.gold(row) if self.answer else None
        template = self.prompt
        schema = schema_text(row[template.schema_column]) if template.schema_column else ""
        tools = tools_text(row[template.tools_column]) if template.tools_column else ""
        return Prompt(
            identity,
            category,
            turns,
            template.chat,
            gold,
            system,
            schema=schema,
            tools=tools,
            script=template.script(row),
        )


def is_table(path: str) -> bool:
    """Return True for a path, packed or not, whose ending is that of a table which is not read as
    rows.
    """
    return (path.removesuffix(Path(path).suffix) if path.endswith(COMPRESSED) else path).endswith(
        TABLE_ENDINGS
    )


def dataset_type(path: Path) -> type[Dataset]:
    """Return the dataset that a TOML file defines; raise SkitError if the file is damaged or has an
    unknown key.
    """
    try:
        definition = convert(DatasetDefinition, tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise SkitError(
            f"the dataset file '{path.name}' cannot be used: {first_line(error)}"
        ) from error

    class TomlDataset(Dataset):
        """A dataset that is defined by a TOML file."""

        summary = definition.summary
        paper = definition.paper
        sample = definition.sample
        local = definition.local
        hub = definition.hub
        train = definition.train
        chat = definition.prompt.chat
        example = definition.example
        check_example = staticmethod(definition.check_example)

        def prompt(self, row: Row, index: int) -> Prompt | None:
            return definition.read_prompt(row, index)

    return TomlDataset


def fill(template: str, row: Row, index: int) -> Any:
    """Return the template with its columns inserted; a template of one column alone keeps the
    column's type.
    """

    def column(match: re.Match[str]) -> Any:
        if match[1] == "index":
            return index
        value: Any = row
        for name in match[1].split("."):
            value = value[name]
        if match[2]:
            if len(value) > len(LETTERS):
                raise ValueError(f"{len(value)} choices, where letters go from A to {LETTERS[-1]}")
            return "\n".join(
                f"{letter}. {choice}" for letter, choice in zip(LETTERS, value, strict=False)
            )
        return value

    # A lone column is not turned into text, so that null and numbers are refused as prompts later
    # on.
    if alone := PLACEHOLDER.fullmatch(template):
        return column(alone)
    return PLACEHOLDER.sub(lambda match: str(column(match)), template)


def register_all(folder: Path) -> None:
    """Register the dataset of every file of a folder; one that is damaged is left out."""
    for path in sorted(folder.glob("*.toml")):
        try:
            datasets.register(path.stem)(dataset_type(path))
        except SkitError as error:
            datasets.leave_out(path.stem, str(error))


register_all(DEFINITIONS)
