"""Benchmarks: speed and quality, each a script that writes its CSV to benchmarks/results."""
