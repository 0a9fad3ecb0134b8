"""A dataset through frozen encoders, computed once and kept on disk.

In: a `PairDataset` and `Towers`. Out: an `EncodedDataset`, from a prepared folder (`prepared_folder`).

Neighbours use `EncodedDataset` and its splits, `TrainingPairs`, and the choice of pairs by their features
(`subset_selection`). `feature_cache` keeps the matrices; `parallel_extraction` computes them in several processes.
"""
