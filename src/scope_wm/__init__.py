"""Scope-WM: visual world models that plan fast."""

__version__ = "0.1.0"
