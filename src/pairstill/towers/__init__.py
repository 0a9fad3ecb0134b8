"""The two towers: image and text encoders, projection heads, and the model that joins them.

In: names of encoders (`weights`) and the settings `Towers` (`two_tower`). Out: `ImageEncoder`, `TextEncoder` and
`TwoTower`, and frozen networks folded into a fast form (`folding`), passed in blocks (`passes`).
"""
