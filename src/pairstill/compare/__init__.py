"""Compare: many methods on the same work, in one run, as one table."""

from pairstill.compare.runner import compare
from pairstill.compare.study import Study, read_study

__all__ = ["Study", "compare", "read_study"]
