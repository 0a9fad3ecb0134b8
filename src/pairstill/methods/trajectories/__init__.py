"""Trajectory matching: a student on the synthetic pairs follows an expert's training."""
