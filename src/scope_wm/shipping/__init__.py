"""The models that ship: listing them, making them from a run, their cards."""
