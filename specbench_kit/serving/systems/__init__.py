"""Serving systems, one TOML file each: who drafts and how, what the server caches, what it verifies
next.
"""
