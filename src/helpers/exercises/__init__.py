"""The automatic checks of the exercises: ``exercises.check(answer)``. One module for each notebook."""

from . import capturing, eager, environment, pitfalls
from .checking import check

__all__ = ["capturing", "check", "eager", "environment", "pitfalls"]
