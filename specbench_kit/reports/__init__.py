"""Reports: what was computed, as Markdown, HTML, tables and figures. Nothing here computes a metric."""
