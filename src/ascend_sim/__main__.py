"""``python -m ascend_sim``: what is simulated and what is not. ``python -m ascend_sim ops``: the operators, judged."""

import argparse
import re
import sys

from . import LoadError, load, operators
from .build import SOURCES, cache_folder
from .pacing import PROFILES

SIMULATED = """
Simulated, with the behaviour and the error codes of CANN:
  device     one card, number 0, that presents itself as an Ascend910B2 with CANN 9.0.1 (torch_npu wants a known name)
  memory     a limit (ASCEND_SIM_MEMORY, GiB), accounting, out of memory; pinned host memory; copies, memset
  streams    a queue and a thread each; synchronise, query, host functions; a limit (ASCEND_SIM_STREAMS, 1984 as on
             an Atlas A2), of which each stream of torch_npu's and each stream of a graph takes one
  events     record, wait across streams, query, elapsed time, external events
  graphs     capture in the modes global, thread_local and relaxed, fork and join by events, replay with the recorded
             parallelism, several graphs in a pool, reset, destroy, JSON dump, task groups (NPUGraph.update)
  operators  {count}, each computed by PyTorch's CPU kernel, bit for bit the same, on {threads} thread(s)
             (ASCEND_SIM_THREADS); random numbers by Philox from torch_npu's seed and offset, so they repeat,
             but they are not the numbers that an Ascend draws
  clocks     cpu, the default: a kernel takes the time that this CPU takes. Ratios of launch cost to kernel time are
             real here; times are not those of an Ascend
             paced, `with ascend_sim.paced(card):` a kernel is not computed and takes max(t_min, flops / peak, bytes /
             bandwidth), by the profile of a card, which has a source and a range for each constant: {cards}.
             Times are modelled then. Reading what was not computed raises. Left out: caches, kernels of two streams
             that slow each other, flops of the vector unit, HF32 of convolutions, more than one kernel an operator

Not simulated (calling it fails and says so):
  operators  every other one: torch_npu raises and names it
  C functions  {unsupported}

Rules of capture: those of CANN's own runtime, as its public sources have them at the version that this device presents
(github hicann/runtime, v9.0.1, 02522b7ab). Where other sources say otherwise, this device answers:
  synchronise or query a captured      107027, and the capture goes on, as torch_npu's tests expect. CANN's FAQ shows
    stream, or synchronise the device  107041, public issues show 107030 too
  copy from or to pageable memory      107027: v9.0.1 synchronises the stream first. From v9.1 on it answers 107000
  a synchronous copy or memset         107030, by mode and thread (Context::IsCaptureModeSupport)
  wait for an event from outside       107024, and the capture goes on
  merge two captures                   107032, and both end with 507903
  destroy a graph that runs            107037 after 10 s of waiting
  no stream left                       207008. Public issues show 207005 too: the driver says which. Here a graph takes
                                       one for each of its streams; CANN takes another every few thousand kernels
  replay after its memory was freed    507015 at the next wait, and nothing runs. On the hardware it is undefined: an
                                       exception of the AI core (this code), or whatever lies there now

Where a result differs from the CPU's because torch_npu, not the device, takes other steps. For the first two,
TORCH_NPU_USE_COMPATIBLE_IMPL=1, set before it is imported, makes it take PyTorch's:
  gelu(approximate="tanh")             torch_npu passes no "approximate", so this device computes the exact form.
                                       Ascend's documents say that theirs computes the tanh form for both
  gradient of matmul                   other products, which may differ in the last bits
  matmul and linear of operands that   other products, which may differ in the last bits
    are not contiguous
  max_pool2d(return_indices=True)      the places are a bit mask of torch_npu's own, here all zero
  more, each with its reason           `python -m ascend_sim ops` lists them as "decomposed": fft, qr, svd, cholesky, …
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ascend_sim", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["ops"], help="judge the operators with PyTorch's OpInfo database")
    parser.add_argument("--json", action="store_true", help="with ops: print an object with right, missing and wrong")
    parser.add_argument("--quick", action="store_true", help="with ops: a fixed part, half a minute instead of four")
    options = parser.parse_args()
    if options.what != "ops" and (options.json or options.quick):
        parser.error("--json and --quick are options of ops")
    try:
        device = load()
    except LoadError as e:
        print(f"ascend_sim: {e}", file=sys.stderr)
        return 1
    if options.what == "ops":
        from .opinfo import report

        return report(json=options.json, quick=options.quick)
    print(f"Device: {device.kind}: {device.why}")
    if device.kind == "simulated":
        import os

        unsupported = re.findall(r"^UNSUPPORTED\((\w+)\)", (SOURCES / "unsupported.cpp").read_text(), re.M)
        print(f"Compiled device: {cache_folder()}")
        print(
            SIMULATED.format(
                count=len(operators()),
                cards=", ".join(sorted(path.stem for path in PROFILES.glob("*.json"))),
                threads=os.environ.get("ASCEND_SIM_THREADS", "1"),
                unsupported=("\n" + " " * 13).join(unsupported),
            ).rstrip()
        )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("ascend_sim: interrupted")
