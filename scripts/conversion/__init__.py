"""Conversion of checkpoints to bundles."""
