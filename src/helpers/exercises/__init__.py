"""The automatic checks of the exercises: ``exercises.check(answer)``. One module for each notebook."""

from . import environment, generation, lever, own_model, prediction
from .checking import check

__all__ = ["check", "environment", "generation", "lever", "own_model", "prediction"]
