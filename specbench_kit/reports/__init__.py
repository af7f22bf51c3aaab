"""Documents and their renderers (Markdown, HTML, terminal, LaTeX, CSV), and what reports of several
commands share.

The reports of benchmarks and their comparisons are here; those of other commands lie beside what
they run.
"""
