"""The workloads, one model a file: genmol.py, nucleotide_transformer.py, climax.py, and aurora.py, a stand-in.

Each is plain torch, of any size; the first three have the names of the published checkpoints, which ``load(model,
path)`` reads. ``model.inputs(batch, ...)`` makes inputs. molecules.py holds GenMol's tokens, sampling and a trained
model; attention.py, tokens.py and weights.py hold what models share. aurora_patches.py is about Aurora itself, and
needs its package.
"""

from .aurora import AuroraStandIn, aurora_stand_in, clock_numbers
from .climax import ClimaX, climax
from .genmol import CLS, MASK, PAD, SEP, SPECIAL, UNK, GenMol, genmol, kernels, sample_inputs
from .molecules import (
    TINY,
    SmilesTokenizer,
    confidence_step,
    draw_noise,
    drawing_step,
    drug_lengths,
    drugs,
    generate,
    generate_as_published,
    generate_in_buckets,
    genmol_tiny,
    in_buckets,
    masked_rows,
    published_step,
    sampling_step,
)
from .nucleotide_transformer import DnaTokenizer, NucleotideTransformer, nucleotide_transformer
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
    "AuroraStandIn",
    "CheckpointError",
    "ClimaX",
    "DnaTokenizer",
    "GenMol",
    "NucleotideTransformer",
    "SmilesTokenizer",
    "TokenError",
    "aurora_stand_in",
    "climax",
    "clock_numbers",
    "confidence_step",
    "draw_noise",
    "drawing_step",
    "drug_lengths",
    "drugs",
    "generate",
    "generate_as_published",
    "generate_in_buckets",
    "genmol",
    "genmol_tiny",
    "in_buckets",
    "kernels",
    "load",
    "load_checkpoint",
    "masked_rows",
    "nucleotide_transformer",
    "published_step",
    "sample_inputs",
    "sampling_step",
]
