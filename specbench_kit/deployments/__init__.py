"""Who drafts, who verifies, over what link, at what price."""
