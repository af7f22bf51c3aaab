"""How quiet the machine was while something was timed on it."""
