"""Images and captions: where they come from, whether they are sound, and how images become pixels.

In: a source (`sources`). Out: a `PairDataset` (`pair_dataset`).

Neighbours use `PairDataset`, `decoding.load_pixels`, `checking.check`, `augmentation` and
`pair_sampling.LinksByPicture`.
"""
