"""Generation: pictures are sampled from a generative model."""
