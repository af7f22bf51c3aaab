"""Random numbers that are counted, not drawn in turn: each follows from what it is for, and from nothing before it."""

import hashlib
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]


class Purpose(IntEnum):
    """What a device needs random numbers for."""

    ASK = 0
    RESPONSE = 1
    ROUND = 2
    UP = 3
    DOWN = 4
    PROMPT = 5
    OUTPUT = 6
    LOST_UP = 7
    LOST_DOWN = 8
    SURETY = 9


class CounterRng:
    """Numbers from 0 to below 1 by device, purpose and count, under a key.

    The mixing function of SplitMix64 (Steele, Lea and Flood 2014), over a stream of its own for each purpose of each
    device.
    """

    def __init__(self, key: str, devices: int) -> None:
        first = np.frombuffer(hashlib.sha256(key.encode()).digest()[:8], np.uint64)[0]
        streams = np.arange(devices * len(Purpose), dtype=np.uint64).reshape(len(Purpose), devices)
        self._streams = _mixed(first + streams * _STEP)

    def of(self, purpose: Purpose, devices: Integers, counts: Integers) -> Floats:
        """One number for each device and its count: shape [devices]."""
        mixed = _mixed(self._streams[purpose, devices] + counts.astype(np.uint64) * _STEP)
        return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


_STEP = np.uint64(0x9E3779B97F4A7C15)


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
