"""The product: the distilled set, its card, its exports, the run that made it, and a student to keep.

In: tensors with their provenance. Out: folders that prove themselves (`DistilledSet`, `Student`).

Neighbours use `distilled_set`, `run_record`, `initial_record`, `saved_student` and `exports`.
"""
