"""Thousands of captures and replays leave nothing behind; many threads at once keep to their own results."""

import gc
import os
import re
from pathlib import Path
from threading import Thread

import pytest
import torch

SANITIZED = bool(os.environ.get("ASCEND_SIM_SANITIZE"))
CAPTURES, REPLAYS = (200, 4) if SANITIZED else (2000, 4)


def usage() -> dict[str, int]:
    """What the process holds: resident memory in MiB, threads, open files."""
    gc.collect()
    torch.npu.synchronize()
    status = Path("/proc/self/status").read_text()
    resident, threads = (int(re.search(rf"^{name}:\s+(\d+)", status, re.M).group(1)) for name in ("VmRSS", "Threads"))
    return {"memory": resident // 1024, "threads": threads, "files": len(os.listdir("/proc/self/fd"))}


def test_ten_thousand_captures_and_replays_leave_nothing_behind():
    x = torch.zeros(64, device="npu")
    stream, side = torch.npu.Stream(), torch.npu.Stream()

    def capture(n, pool=None):
        """A graph of a few kernels, every tenth with a fork, and the tensor that it writes: 2 x + n."""
        graph = torch.npu.NPUGraph()
        with torch.npu.stream(stream):
            graph.capture_begin(pool=pool)
            y = x + n
            if n % 10 == 0:
                side.wait_stream(stream)
                with torch.npu.stream(side):
                    z = x * 1
                stream.wait_stream(side)
            else:
                z = x * 1
            y = y + z
            graph.capture_end()
        return graph, y

    first, _ = capture(0)
    for n in range(CAPTURES):
        graph, y = capture(n, first.pool())  # one for all: torch_npu keeps 50 KB for each pool that there ever was
        for i in range(REPLAYS):
            x.fill_(i)
            graph.replay()
        torch.npu.current_stream().synchronize()  # or torch_npu warns that the graph it drops is still running
        if n % 50 == 0:
            assert y.unique().tolist() == [2 * i + n]
        if n == 100:
            before = usage()
    after = usage()
    growth = {what: after[what] - before[what] for what in after}
    assert growth["threads"] <= 0 and growth["files"] <= 0, growth
    # A sanitizer keeps what was freed, to know it when it is used again.
    assert growth["memory"] < 16 or SANITIZED, growth


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_threads_capture_replay_and_run_eager_side_by_side(mode):
    results, errors = {}, []

    def work(n):
        try:
            torch.npu.set_device(0)
            with torch.npu.stream(torch.npu.Stream()):
                x = torch.full((256,), float(n), device="npu")
                total = torch.zeros(256, device="npu")
                for _ in range(30):
                    graph = torch.npu.NPUGraph()
                    graph.capture_begin(capture_error_mode=mode)
                    y = (x + 1) * 2
                    total.add_(y)
                    graph.capture_end()
                    for _ in range(10):
                        graph.replay()
                        total.add_(x)  # eager, between replays
                results[n] = total.cpu().unique().tolist()
        except Exception as e:
            errors.append(e)

    threads = [Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert results == {n: [300.0 * (2 * (n + 1) + n)] for n in range(8)}
