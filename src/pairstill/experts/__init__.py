"""Experts: models trained on the real pairs from one anchor, and the teachers that are made of them.

In: a prepared dataset. Out: a `Bank` of checkpoints, and from it the weights of a `FrozenTeacher`.

Neighbours use `Bank`, `expert_training.train_experts`, `teacher_weights.TEACHERS` and `frozen_teacher`.
`model_stock` merges, `packing` makes checkpoints small, `foreign_buffers` reads those of other projects.
"""
