"""What an error line says of names: those that are meant, and all if they are few."""

from specbench_kit.core.errors import MOST_LISTED, valid_choices


def test_few_names_are_listed_and_of_many_the_three_nearest_are_suggested() -> None:
    few = [f"method-{number}" for number in range(MOST_LISTED)]
    assert valid_choices("methd-3", few, "skit list methods").endswith(f"; known: {', '.join(few)}")
    many = [*few, "another"]
    assert valid_choices("method-", many, "skit list methods") == (
        " (did you mean 'method-9', 'method-8' or 'method-7'?); skit list methods shows all 13"
    )
    assert valid_choices("zzz", many, "skit list methods") == "; skit list methods shows all 13"
    assert valid_choices("zzz", many) == f"; known: {', '.join(many)}"
