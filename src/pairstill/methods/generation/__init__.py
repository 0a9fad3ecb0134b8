"""Generation: images are sampled from a generative model."""
