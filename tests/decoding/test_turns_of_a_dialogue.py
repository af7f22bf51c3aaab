"""Which requests are turns of one dialogue, so that statistics do not take them for independent samples."""

from specbench_kit.decoding.dialogues import Dialogues
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.statistics import units_of

SYSTEM = list(range(40))
FIRST = [*SYSTEM, 100, 101]
ANSWER = [200, 201, 202, 203, 204, 205, 206, 207, 208, 209, 210, 2]


def record(
    name: str, prompt: list[int], answer: list[int], finished_s: float = 1.0, dialogue: str = ""
) -> RequestRecord:
    made = RequestRecord(name, "", prompt, answer, e2e_s=1.0, finished_s=finished_s)
    made.dialogue = dialogue
    return made


def test_a_prompt_that_goes_on_from_an_answer_is_the_next_turn() -> None:
    second = [*FIRST, *ANSWER[:-1], 300, 301]
    records = [
        record("chat/1", FIRST, ANSWER),
        record("chat/2", second, [7, 2]),
        record("other", FIRST, ANSWER),
    ]
    assert units_of(records) == {"chat/1": 0, "chat/2": 0, "other": 1}


def test_templates_may_leave_out_the_beginning_of_an_answer() -> None:
    dialogues = Dialogues()
    first = dialogues.index("chat/1", FIRST, ANSWER)
    assert dialogues.index("chat/2", [*FIRST, *ANSWER[3:-1], 300], []) == first


def test_prompts_with_the_same_examples_are_no_dialogue() -> None:
    """Names such as HumanEval/12 look like turns, and prompts with examples begin alike."""
    records = [
        record(f"HumanEval/{n}", [*SYSTEM, *range(500, 503 + n)], ANSWER, n) for n in range(1, 8)
    ]
    assert len(set(units_of(records).values())) == 7


def test_a_request_may_name_its_dialogue() -> None:
    """A template may leave out all of an answer in which the model only thought."""
    records = [
        record("chat/2", [*FIRST, 300], [9, 2], 2.0, "chat"),
        record("chat/1", FIRST, ANSWER, 1.0, "chat"),
        record("b", FIRST, ANSWER, 3.0),
    ]
    assert units_of(records) == {"chat/1": 0, "chat/2": 0, "b": 1}


def test_dialogues_share_a_batch_with_those_that_were_admitted_beside_them() -> None:
    """Later turns are decoded in later batches, and belong to the batch in which their dialogue began."""
    turns = [
        record(f"{name}/{turn}", [], [], 10 * turn + place, name)
        for turn in (1, 2)
        for place, name in PLACES
    ]
    assert units_of(turns, 2) == {
        f"{name}/{turn}": place // 2 for turn in (1, 2) for place, name in PLACES
    }


PLACES = list(enumerate(("a", "b", "c", "d")))


def test_the_dialogue_is_in_a_line_only_where_there_is_one() -> None:
    assert '"dialogue"' not in record("a", [1], [2]).to_json()
    line = record("a/1", [1], [2], dialogue="a").to_json()
    assert RequestRecord.from_json(line).dialogue == "a"
