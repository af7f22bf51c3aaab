"""Loads on a real server: many devices draft from a trace in real time, and a simulation of the
same load.
"""
