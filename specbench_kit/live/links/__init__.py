"""Emulated network links: messages and HTTP requests that arrive as late as over a real one."""
