"""Drafts that cross a wire: a verification server, and the edge that drafts for it."""
