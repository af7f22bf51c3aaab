"""Installs emulated cards when Python starts, for processes that tests start with this folder on PYTHONPATH."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from emulated_card import emulated_cards

emulated_cards(2).__enter__()
