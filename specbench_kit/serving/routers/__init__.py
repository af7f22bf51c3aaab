"""Routers: which server of a pool verifies a session. One file each; the contract is in `base`."""
