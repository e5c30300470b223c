"""Data on disk: collect episodes into a store, look at it, and feed windows of it to training."""
