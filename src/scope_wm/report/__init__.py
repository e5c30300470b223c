"""What is shown to people: tables, plots, pictures."""
