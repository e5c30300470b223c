"""Training: one file per stage, and the loop that they share."""
