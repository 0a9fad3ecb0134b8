"""Training a two-tower model on pairs, and its recall.

In: `TrainingPairs` and a `Recipe` (`training_recipe`). Out: a trained `TwoTower` and its `Recall`.

Neighbours use `training_loop.train`, `student_training.train_student`, `losses`, `recall` and `protocols`.
"""
