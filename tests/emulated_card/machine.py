"""A machine with emulated cards: installs them, and answers for `torch.cuda`."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from emulated_card import pinned
from emulated_card.cards import Card
from emulated_card.counts import Counts
from emulated_card.graphs import Graph, capture
from emulated_card.requests import CardRequests
from emulated_card.streams import Event, Stream

GIB = 2**30
NAME = "Emulated card"
_running: "list[Machine]" = []


class Machine:
    """Some cards with memory of their own, and the counts of what they do."""

    def __init__(self, cards: int, memory_bytes: int) -> None:
        self.counts = Counts()
        self.cards = [Card(index, memory_bytes, self.counts) for index in range(cards)]
        self._of_thread = threading.local()

    @property
    def current_card(self) -> Card:
        """The card that `cuda` without a number means in this thread."""
        return self.cards[getattr(self._of_thread, "index", 0)]

    def set_current(self, device: Any) -> None:
        """Choose the card that `cuda` without a number means in this thread."""
        card = self.card_of(device)
        assert card is not None
        self._of_thread.index = card.index

    def card_of(self, device: Any) -> Card | None:
        """Return the card that a device, its name or number means; None for the host."""
        if device is None:
            return self.current_card
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if device.type != "cuda":
            return None
        if device.index is None:
            return self.current_card
        if device.index >= len(self.cards):
            raise RuntimeError(
                f"CUDA error: invalid device ordinal: {device}, of {len(self.cards)}"
            )
        return self.cards[device.index]


def current_machine() -> Machine:
    """Return the machine whose cards are installed."""
    return _running[-1]


@contextmanager
def emulated_cards(cards: int = 2, memory_bytes: int = 16 * GIB) -> Iterator[Machine]:
    """Install cards in this process, in this thread and all threads that start inside."""
    machine = Machine(cards, memory_bytes)
    with ExitStack() as stack:
        for owner, name, answer in _answers(machine):
            stack.enter_context(patch.object(owner, name, answer))
        stack.enter_context(CardRequests(machine))
        _running.append(machine)
        try:
            yield machine
        finally:
            _running.remove(machine)
            pinned.forget()


def _answers(machine: Machine) -> Iterator[tuple[Any, str, Any]]:
    """Return what takes the place of parts of torch and of threads, as owner, name and substitute."""

    def on_card(answer: Callable[[Card], Any]) -> Callable[..., Any]:
        return lambda device=None, *_, **__: answer(machine.card_of(device) or machine.current_card)

    def reset_peak(card: Card) -> None:
        card.peak_bytes = card.allocated_bytes

    answers = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: len(machine.cards),
        "current_device": lambda: machine.current_card.index,
        "set_device": machine.set_current,
        "is_bf16_supported": lambda *_, **__: True,
        "empty_cache": lambda: None,
        "get_device_name": lambda *_: NAME,
        "get_device_capability": lambda *_: (8, 0),
        "get_device_properties": on_card(_properties),
        "mem_get_info": on_card(
            lambda card: (card.limit_bytes - card.allocated_bytes, card.limit_bytes)
        ),
        "memory_allocated": on_card(lambda card: card.allocated_bytes),
        "max_memory_allocated": on_card(lambda card: card.peak_bytes),
        "memory_reserved": on_card(lambda card: card.allocated_bytes),
        "reset_peak_memory_stats": on_card(reset_peak),
        "synchronize": on_card(Card.synchronize),
        "current_stream": on_card(lambda card: card.stream),
        "default_stream": on_card(lambda card: card.default_stream),
        "is_current_stream_capturing": lambda: machine.current_card.capture is not None,
        "graph_pool_handle": lambda: (0, 0),
        "device": _using(machine),
        "stream": _on_stream,
        "Stream": lambda device=None, **_: _new_stream(machine.card_of(device)),
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": capture,
    }
    for name, answer in answers.items():
        yield torch.cuda, name, answer
    # Optimizers ask here, from torch 2.14 on, whether a graph is being captured.
    yield torch.accelerator, "current_stream", answers["current_stream"]
    yield threading.Thread, "_bootstrap_inner", _bootstrap(machine)
    yield torch, "autocast", _autocast(torch.autocast)


def _bootstrap(machine: Machine) -> Callable[[threading.Thread], None]:
    """Return the beginning of a thread in which cards can be asked for too."""
    start = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def run(thread: threading.Thread) -> None:
        with CardRequests(machine):
            start(thread)

    return run


def _autocast(autocast: Any) -> Callable[..., Any]:
    """Return autocast for cards, which to torch's C++ code are the CPU."""
    return lambda device_type, **options: autocast(
        "cpu" if device_type == "cuda" else device_type, **options
    )


def _using(machine: Machine) -> Callable[[Any], Any]:
    @contextmanager
    def using(device: Any) -> Iterator[None]:
        before = machine.current_card.index
        machine.set_current(device)
        try:
            yield
        finally:
            machine.set_current(before)

    return using


def _new_stream(card: Card | None) -> Stream:
    assert card is not None
    stream = Stream(card)
    card.streams.append(stream)
    return stream


@contextmanager
def _on_stream(stream: Stream | None) -> Iterator[None]:
    if stream is None:
        yield
        return
    before, stream.card.stream = stream.card.stream, stream
    try:
        yield
    finally:
        stream.card.stream = before


def _properties(card: Card) -> SimpleNamespace:
    return SimpleNamespace(
        name=NAME,
        total_memory=card.limit_bytes,
        major=8,
        minor=0,
        multi_processor_count=108,
        index=card.index,
    )
