"""A target that verifies drafts over the network: `skit serve`."""
