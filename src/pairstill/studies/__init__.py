"""Comparisons: many methods on the same work, in one run, as one table.

In: a `Study`, read from a recipe (`study`). Out: `tables` and `figures`; `published` has the paper's.

Neighbours use `comparison.compare`, `study.read_study`, `tables` and `published`. `job` is one row.
"""
