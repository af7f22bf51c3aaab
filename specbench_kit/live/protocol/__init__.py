"""The protocol between devices and server: verification.proto, and the Python code that is
generated from it.
"""
