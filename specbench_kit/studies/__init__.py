"""What the commands run: a folder per command, with its settings, run, summary, report and figures.

What several commands need lies in rooms below this one; no other room imports a study, but the
command line and the Python interface.
"""
