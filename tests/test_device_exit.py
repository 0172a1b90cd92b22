"""The end of a process: with work in flight, after a fork, of a notebook's kernel. Nothing hangs, nothing crashes."""

import os
import re
import signal
import time

import pytest

START = """
import ascend_sim; ascend_sim.load()
import multiprocessing, os, signal, sys, threading, time, torch, torch_npu
x, a = torch.ones(3, device="npu"), torch.ones(400, 400, device="npu")

def work(n=60):
    b = a
    for _ in range(n):
        b = (b @ a) * 1e-3

def fork():
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        work()
    work()
    torch.npu.current_stream().wait_stream(side)

def captured(function):
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        function()
    return graph

def on_a_thread(function):
    def run():
        torch.npu.set_device(0)
        with torch.npu.stream(torch.npu.Stream()):
            function()
    thread = threading.Thread(target=run)
    thread.start()
    return thread
"""
# How a script ends while the device works, and its exit code.
ENDINGS = {
    "two streams": ("fork()", 0),
    "sys.exit": ("work(); sys.exit(5)", 5),
    "exception": ("work(); raise ValueError", 1),
    "in a capture": (
        "work(); host = torch.ones(1 << 22).pin_memory()\n"
        "y = torch.zeros(1 << 22, device='npu').copy_(host, non_blocking=True)\n"
        "with torch.npu.stream(torch.npu.Stream()): torch.npu.NPUGraph().capture_begin(); x + 1; sys.exit(5)",
        5,
    ),
    "in torch.npu.graph": ("work()\nwith torch.npu.graph(torch.npu.NPUGraph()): x + 1; sys.exit(5)", 5),
    "replays": ("graph = captured(fork)\nfor _ in range(3): graph.replay()", 0),
    "replays of a graph that is gone": ("graph = captured(fork)\nfor _ in range(3): graph.replay()\ndel graph", 0),
    "another thread exits": ("on_a_thread(lambda: (work(), sys.exit(5)))", 0),
    "a thread ended in a capture": (
        "on_a_thread(lambda: (torch.npu.NPUGraph().capture_begin(), x + 1)).join(); work()",
        0,
    ),
    "SIGINT": (
        # Who was started in the background inherits that it is ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start(); work(); time.sleep(9)",
        -signal.SIGINT,
    ),
    "SIGTERM": ("work(); signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM),
}  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
def test_script_ends_with_work_in_flight(run_python, ending):
    code, expected = ENDINGS[ending]
    done = run_python(START + code, TASK_QUEUE_ENABLE="1")
    assert done.returncode == expected, done.stderr
    assert not re.search("terminate called|Segmentation fault|Fatal Python error", done.stderr)


def test_exit_while_another_thread_launches(run_python):
    done = run_python(
        START + "def endless():\n"
        "    torch.npu.set_device(0)\n"
        "    b = a[:100, :100]\n"
        "    while True: b = (b @ b).tanh()\n"
        "threading.Thread(target=endless, daemon=True).start()\n"
        "time.sleep(0.3)",
        TASK_QUEUE_ENABLE="1",
    )
    # Python ends a daemon thread inside torch's C++ code with abort, with tensors on the CPU too. No more than that.
    assert done.returncode in (0, -signal.SIGABRT), done.stderr


def test_exit_waits_for_an_event_that_nobody_records_until_torch_npus_timeout(run_python):
    """torch_npu synchronises the device at exit, on a card too; ACL_DEVICE_SYNC_TIMEOUT, in seconds, ends the wait."""
    done = run_python(
        START + "torch.npu.ExternalEvent().wait(torch.npu.Stream())", TASK_QUEUE_ENABLE="1", ACL_DEVICE_SYNC_TIMEOUT="1"
    )
    assert done.returncode == 0, done.stderr
    assert "did not finish in time" in done.stderr


# A fork. The device's threads stay behind, and so do those of torch_npu's queue.


@pytest.mark.parametrize("level", ["0", "1"])
def test_forked_child_gets_an_error_not_a_hang(run_python, level):
    done = run_python(
        START + "work()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try: (x + 1).tolist(); print('no error')\n"
        "    except RuntimeError as e: print('forked' if 'was forked after' in str(e) else e, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0); print((x + 1).tolist())",
        TASK_QUEUE_ENABLE=level,
    )
    assert done.stdout.split("\n")[:2] == ["forked", "[2.0, 2.0, 2.0]"], done.stdout + done.stderr


@pytest.mark.skipif("ASCEND_SIM_SANITIZE" in os.environ, reason="torch_npu's own fault in the child is reported")
@pytest.mark.parametrize("level", ["0", "1"])
def test_forked_child_ends_and_leaves_the_parent_alone(run_python, level):
    done = run_python(
        START + "graph = captured(fork); graph.replay()\n"
        "pid = os.fork()\n"
        "if pid == 0: del graph; sys.exit(0)\n"
        # Its exit code says nothing: torch_npu joins threads of its own, which are not there, and may crash.
        "os.waitpid(pid, 0); graph.replay(); print((x + 1).tolist())",
        TASK_QUEUE_ENABLE=level,
    )
    assert done.stdout.strip() == "[2.0, 2.0, 2.0]", done.stderr


@pytest.mark.skipif(
    os.environ.get("ASCEND_SIM_SANITIZE") == "thread", reason="it follows no threads that a forked child starts"
)
def test_workers_of_multiprocessing_and_of_a_data_loader(run_python):
    """torch_npu itself refuses in what multiprocessing forks. Workers that leave the device alone are no problem."""
    done = run_python(
        START + "def use():\n"
        "    try: x + 1\n"
        "    except RuntimeError as e: print(e, flush=True)\n"
        "worker = multiprocessing.get_context('fork').Process(target=use)\n"
        "worker.start(); worker.join(); print(worker.exitcode)\n"
        "class Numbers(torch.utils.data.Dataset):\n"
        "    def __init__(self, device): self.device = device\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i): return torch.full((2,), float(i), device=self.device)\n"
        "def load(device):\n"
        "    loader = torch.utils.data.DataLoader(Numbers(device), 4, num_workers=2, multiprocessing_context='fork')\n"
        "    return sum(batch.npu().sum().item() for batch in loader)\n"
        "work(); print(load('cpu'))\n"
        "try: load('npu')\n"
        "except RuntimeError as e: print(str(e).strip().split('\\n')[-1])\n",
        TASK_QUEUE_ENABLE="1",
    )
    refused, code, total, refused_again = done.stdout.strip().split("\n")
    assert refused.startswith("Cannot re-initialize NPU in forked subprocess"), done.stderr
    assert (code, total) == ("0", "56.0")
    assert refused in refused_again
    assert done.returncode == 0, done.stderr


# A notebook's kernel.


def gone(pid: int, seconds: float = 20) -> bool:
    until = time.monotonic() + seconds
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
        time.sleep(0.05)
    return not os.path.exists(f"/proc/{pid}")


def test_kernel_is_interrupted_restarted_and_shut_down_while_the_device_works():
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    try:

        def run(code: str) -> dict:
            return client.execute_interactive(code, timeout=60, output_hook=lambda message: None)["content"]

        assert run(START)["status"] == "ok"
        waiting = client.execute("work(2000); torch.npu.synchronize()")
        time.sleep(0.5)
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=60)
        assert reply["parent_header"]["msg_id"] == waiting
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        assert run("assert (x + 1).tolist() == [2.0] * 3; work(500)")["status"] == "ok"
        first = manager.provisioner.pid
        manager.restart_kernel()
        client.wait_for_ready(timeout=60)
        assert gone(first)
        assert run(START + "work(500)")["status"] == "ok"
    finally:
        client.stop_channels()
        last = manager.provisioner.pid
        manager.shutdown_kernel()
    assert gone(last)
