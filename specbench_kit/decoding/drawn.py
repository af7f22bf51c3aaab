"""The kinds of verification of tokens that were drawn at random."""

from typing import Literal

Verification = Literal["token", "block", "without-replacement", "with-replacement"]
"""How tokens that were drawn at random are verified: each by itself, a chain as one block, or the
children of a node one after the other, which were drawn without or with replacement.
"""
