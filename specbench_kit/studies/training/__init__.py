"""From traces to deployable rejection predictors, and to what they are worth."""
