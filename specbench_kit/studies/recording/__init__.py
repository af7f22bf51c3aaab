"""Record what both models of a pair say of the target's own answers: traces and rank tables."""
