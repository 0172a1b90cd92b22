"""The automatic checks of the exercises: ``exercises.check(answer)``. One module for each notebook."""

from . import environment, results
from .checking import check

__all__ = ["check", "environment", "results"]
