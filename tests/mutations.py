"""Seeded ways to spoil a file: bits, ends, types, numbers, nesting and hostile texts."""

import json
import pickle
from pathlib import Path
from random import Random
from typing import Any

HUGE_NESTING = "[" * 20_000
TEXTS = (
    "",
    "x\n<script>alert(1)</script>\n",
    "=1+1",
    "\x1b[31m\u202e",
    "\ud800",
    "../../../etc/passwd",
    "{{ ''.__class__.__mro__ }}",
    "[bold]$x^{`|",
    "a" * 3000,
)
NUMBERS = (0, -1, 1.5, 2**70, -(2**63), 1e308, 5e-324, float("nan"), float("inf"))
NESTED: object = [[[[[{"a": [None]}]]]]]
VALUES: tuple[object, ...] = (
    *TEXTS,
    *NUMBERS,
    None,
    True,
    [],
    {},
    NESTED,
    {"__reduce__": ["os.system", "true"]},
)


class Payload:
    """An object of which a reader that unpickles would make a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def payload(mark: Path) -> bytes:
    return pickle.dumps(Payload(mark))


def spoil(content: bytes, random: Random) -> bytes:
    """The bytes with a bit turned, a part cut out, doubled or at the wrong place, or something put in."""
    at, end = sorted((random.randrange(len(content) + 1), random.randrange(len(content) + 1)))
    kind = random.randrange(6)
    if kind == 0 and content:
        offset = random.randrange(len(content))
        return (
            content[:offset]
            + bytes([content[offset] ^ 1 << random.randrange(8)])
            + content[offset + 1 :]
        )
    if kind == 1:
        return content[:at]
    if kind == 2:
        return content[:at] + content[end:]
    if kind == 3:
        return content[:end] + content[at:]
    if kind == 4:
        return (
            content[:at]
            + random.choice((b"\x00\xff", HUGE_NESTING.encode(), b'"', b"\n\n", b"nan"))
            + content[at:]
        )
    return content[:at] + random.choice(TEXTS).encode("utf-8", "surrogatepass") + content[at:]


def swap(tree: Any, random: Random, values: tuple[object, ...] = VALUES) -> Any:
    """A JSON value with one of its parts, at any depth, replaced, taken out or given another name."""
    if not isinstance(tree, dict | list) or not tree:
        return random.choice(values)
    key = random.choice(list(tree)) if isinstance(tree, dict) else random.randrange(len(tree))
    changed = tree.copy()
    if random.random() < 0.6:
        changed[key] = swap(tree[key], random, values)
    elif random.random() < 0.7:
        changed[key] = random.choice(values)
    elif isinstance(tree, dict):
        changed[random.choice(TEXTS)] = changed.pop(key)
    else:
        del changed[key]
    return changed


def spoil_json(content: bytes, random: Random) -> bytes:
    """A spoilt JSON document, by bytes or by a part of what it says."""
    return (
        spoil(content, random)
        if random.random() < 0.3
        else json.dumps(swap(json.loads(content), random)).encode()
    )


def spoil_lines(content: bytes, random: Random) -> bytes:
    """Spoil one line of a JSONL file."""
    lines = content.split(b"\n")
    number = random.randrange(len(lines) - 1)
    lines[number] = spoil_json(lines[number], random)
    return b"\n".join(lines) if random.random() < 0.8 else spoil(content, random)
