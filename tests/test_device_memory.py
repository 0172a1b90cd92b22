"""Device memory: a limit, accounting, and the errors of torch_npu."""

import pytest
import torch

MIB = 1 << 20


@pytest.fixture(autouse=True)
def empty():
    torch.npu.synchronize()
    torch.npu.empty_cache()


def test_mem_get_info_follows_allocations():
    free, total = torch.npu.mem_get_info()
    reserved = torch.npu.memory_reserved()
    block = torch.empty(64 * MIB, dtype=torch.uint8, device="npu")
    grown = torch.npu.memory_reserved() - reserved
    assert 64 * MIB <= grown <= 66 * MIB, "torch_npu pads a block by 32 bytes and rounds to 2 MiB"
    assert torch.npu.mem_get_info() == (free - grown, total)
    del block
    assert torch.npu.mem_get_info() == (free - grown, total), "torch_npu's allocator caches the block"
    torch.npu.empty_cache()
    assert torch.npu.mem_get_info() == (free, total)


def test_out_of_memory_is_torch_npus_own_and_leaves_the_device_usable():
    _, total = torch.npu.mem_get_info()
    with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory. Tried to allocate"):
        torch.empty(2 * total, dtype=torch.uint8, device="npu")
    assert torch.ones(4, device="npu").add(1).tolist() == [2.0] * 4


def test_limit_can_be_set(run_python):
    done = run_python(
        "import ascend_sim; ascend_sim.load(); import torch, torch_npu; print(torch.npu.mem_get_info()[1])",
        ASCEND_SIM_MEMORY="0.5",
    )
    assert int(done.stdout) == 512 * MIB


def test_freed_ranges_are_joined_again():
    free, _ = torch.npu.mem_get_info()
    blocks = [torch.empty(32 * MIB, dtype=torch.uint8, device="npu") for _ in range(8)]
    del blocks[::2]
    del blocks
    torch.npu.empty_cache()
    whole = torch.empty(free // MIB * MIB - 64 * MIB, dtype=torch.uint8, device="npu")
    assert whole.numel() > 0
    del whole


def test_memory_does_not_grow():
    def step():
        x = torch.ones(1024, device="npu")
        for _ in range(20):
            x = x * 1.5
        return x.sum()

    step()
    torch.npu.synchronize()
    before = torch.npu.memory_reserved()
    for _ in range(100):
        step()
    torch.npu.synchronize()
    assert torch.npu.memory_reserved() == before


def test_copy_from_pinned_memory_that_is_freed_before_it_runs_does_no_harm(run_python):
    done = run_python(
        "import ascend_sim; ascend_sim.load(); import ctypes, torch, torch_npu\n"
        "size, pinned, device = 1 << 26, ctypes.c_void_p(), ctypes.CDLL('libascendcl.so')\n"
        "a, x = torch.ones(400, 400, device='npu'), torch.ones(size, dtype=torch.uint8, device='npu')\n"
        "for _ in range(10): b = a @ a\n"
        "assert device.aclrtMallocHost(ctypes.byref(pinned), ctypes.c_size_t(size)) == 0\n"
        "stream = ctypes.c_void_p(torch.npu.current_stream().npu_stream)\n"
        "to, n, to_device = ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(size), 1\n"
        "assert device.aclrtMemcpyAsync(to, n, pinned, n, to_device, stream) == 0\n"
        "assert device.aclrtFreeHost(pinned) == 0\n"
        "torch.npu.synchronize(); print(x.sum().item())"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr
