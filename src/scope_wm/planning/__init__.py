"""From a cost to a plan: optimisers, the objective, model predictive control."""
