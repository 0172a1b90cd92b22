"""The workloads, one model a file: GenMol (genmol.py, with its sampling in molecules.py).

Each is plain torch, of any size, with the names of the published checkpoint: ``load(model, path)`` reads that.
``model.inputs(batch, ...)`` makes inputs for it. attention.py, tokens.py and weights.py hold what they share.
"""

from .genmol import CLS, MASK, PAD, SEP, SPECIAL, UNK, GenMol, genmol, kernels, sample_inputs
from .molecules import (
    TINY,
    SmilesTokenizer,
    confidence_step,
    draw_noise,
    drug_lengths,
    drugs,
    generate,
    genmol_tiny,
    masked_rows,
    sampling_step,
)
from .tokens import TokenError
from .weights import CheckpointError, load

load_checkpoint = load

__all__ = [
    "CLS",
    "MASK",
    "PAD",
    "SEP",
    "SPECIAL",
    "TINY",
    "UNK",
    "CheckpointError",
    "GenMol",
    "SmilesTokenizer",
    "TokenError",
    "confidence_step",
    "draw_noise",
    "drug_lengths",
    "drugs",
    "generate",
    "genmol",
    "genmol_tiny",
    "kernels",
    "load",
    "load_checkpoint",
    "masked_rows",
    "sample_inputs",
    "sampling_step",
]
