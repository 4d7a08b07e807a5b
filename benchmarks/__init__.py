"""Measurements: `python -m benchmarks.run` is the command, docs/performance.md its result."""
