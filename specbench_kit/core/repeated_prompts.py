"""Prompts that are decoded several times at once, so that a batch stays full for long."""


def passes_for(prompts: int, fewest: int) -> int:
    """Return how often so many prompts have to be decoded, all of them each time, for the `fewest`
    requests.
    """
    return max(1, -(-fewest // prompts)) if prompts else 1


def repeated_id(name: str, number: int) -> str:
    """Return the name of a prompt's request, of which no two are the same; repeats are numbered
    from 0.
    """
    return f"{name}+{number}" if number else name
