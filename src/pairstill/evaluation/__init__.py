"""A distilled set becomes a figure: students are trained on it and their recall is taken.

In: a `DistilledSet` and a `Protocol`. Out: a `Result`.

Neighbours use `scoring.evaluate` and `scoring.evaluate_full`, and `text_adaptation` where students have another text
encoder than the set.
"""
