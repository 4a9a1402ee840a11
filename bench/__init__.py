"""Measures what the specification promises, as ratios to the bare machine in the same run."""
