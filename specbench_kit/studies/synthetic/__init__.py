"""Decode with synthetic pairs of models, whose agreement is an option."""
