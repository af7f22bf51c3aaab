"""Reports: documents made of what was computed, rendered as Markdown, HTML, terminal, LaTeX and CSV."""
