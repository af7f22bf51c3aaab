"""Verification over a network: the server, and the edge that drafts for it or for another inference
engine.
"""
