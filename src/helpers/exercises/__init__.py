"""The automatic checks of the exercises: ``exercises.check(answer)``. One module for each notebook."""

from . import (
    capturing,
    eager,
    environment,
    generation,
    lever,
    own_model,
    pitfalls,
    prediction,
    results,
    training,
)
from .checking import check

__all__ = [
    "capturing",
    "check",
    "eager",
    "environment",
    "generation",
    "lever",
    "own_model",
    "pitfalls",
    "prediction",
    "results",
    "training",
]
