"""Choose the options of each method on a trace."""
