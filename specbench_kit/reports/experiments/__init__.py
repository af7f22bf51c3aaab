"""The reports of reproduced experiments."""
