"""Train the tiny GenMol that the course ships: ``python tools/train_tiny.py [FILE]``. CPU, one thread, about a minute.

It sees 48 drugs and nothing else, so it learns them by heart. It is there to show that a captured sampling step gives
the same molecules as an eager one, not to invent molecules.
"""

import sys
import time
from pathlib import Path

import helpers  # noqa: F401  before torch
from helpers.models import MASK, PAD, SPECIAL, TINY, GenMol, SmilesTokenizer, drugs

import torch
from torch.nn import functional as F

STEPS, RATE, DECAY = 1500, 3e-3, 0.99


def loss_of(model: GenMol, ids: torch.Tensor, mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The masked-diffusion loss: hide a share t of each row, weigh what is predicted there by 1 / t."""
    t = torch.rand(len(ids), 1, generator=generator).clamp(min=0.02)
    hidden = (torch.rand(ids.shape, generator=generator) < t) & (ids >= len(SPECIAL))
    logits = model(torch.where(hidden, MASK, ids), mask)
    each = F.cross_entropy(logits.transpose(1, 2), ids, reduction="none")
    return (each * hidden / t).sum() / (ids >= len(SPECIAL)).sum()


def main(path: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    tokenizer = SmilesTokenizer()
    ids, mask = tokenizer.encode(list(drugs().values()), TINY["length"])
    ids, mask = ids[:, : (ids != PAD).sum(1).max()], mask[:, : (ids != PAD).sum(1).max()]
    model = GenMol(len(tokenizer), **TINY)
    shadow = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS, pct_start=0.1)
    start = time.perf_counter()
    for step in range(STEPS):
        loss = loss_of(model, ids, mask, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for average, p in zip(shadow, model.parameters(), strict=True):
                average.lerp_(p, 1 - DECAY)
        if step % 100 == 99:
            print(f"step {step + 1:5d}  loss {loss.item():.3f}  {time.perf_counter() - start:.0f} s", flush=True)
    state = {f"backbone.{name}": value for name, value in model.state_dict().items()}
    torch.save(
        {
            "state_dict": state,
            "ema": {"decay": DECAY, "num_updates": STEPS, "shadow_params": shadow},
            "global_step": STEPS,
            "hyper_parameters": {"config": {"model": {"vocab_size": len(tokenizer), **TINY}}},
        },
        path,
    )
    print(f"wrote {path}: {sum(p.numel() for p in model.parameters())} parameters, {path.stat().st_size} bytes")


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent / "src/helpers/data/genmol_tiny.ckpt"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else here)
