"""The verification server: device streams, sessions, and the thread that verifies their rounds in
batches.
"""
