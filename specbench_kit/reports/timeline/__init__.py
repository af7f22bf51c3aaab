"""Views of one run in detail: who was busy when, and where each token comes from."""
