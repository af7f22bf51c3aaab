"""Deployments: the devices that draft and verify, the link between them, and their prices."""
