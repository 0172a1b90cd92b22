"""Loading: what happens without a compiler, with an old torch_npu, in several processes."""

import os
import subprocess
import sys

import pytest
from processes import last_line

LOAD = "import ascend_sim; ascend_sim.load(); import torch, torch_npu\n"
USE = "print((torch.arange(3., device='cpu').npu() + 1).tolist())\n"


def test_missing_compiler_is_named(run_python, tmp_path):
    done = run_python(LOAD, ASCEND_SIM_CACHE=str(tmp_path / "cache"), CXX="no-such-compiler")
    assert "no C++ compiler (no-such-compiler): install one" in last_line(done)


def test_broken_compiler_is_one_line(run_python, tmp_path):
    done = run_python(LOAD, ASCEND_SIM_CACHE=str(tmp_path / "cache"), CXX="false")
    assert "the C++ compiler failed" in last_line(done)
    assert not list((tmp_path / "cache").glob("*/done"))


@pytest.mark.parametrize("name", ["ASCEND_SIM_MEMORY", "ASCEND_SIM_THREADS", "ASCEND_SIM_STREAMS"])
@pytest.mark.parametrize("value", ["abc", "0", "-1", "nan", "1e30"])
def test_setting_that_makes_no_sense(run_python, name, value):
    done = run_python("import ascend_sim; ascend_sim.load()", **{name: value})
    assert f"{name}={value!r}: expected a number of" in last_line(done)


def test_check_that_is_neither_on_nor_off(run_python):
    done = run_python("import ascend_sim; ascend_sim.load()", ASCEND_SIM_CHECK="yes")
    assert "ASCEND_SIM_CHECK='yes': expected 0 or 1" in last_line(done)


def test_truncated_library_is_built_again(tmp_path, monkeypatch):
    import ascend_sim.build

    monkeypatch.setattr(ascend_sim.build, "SOURCES", tmp_path)
    monkeypatch.setenv("ASCEND_SIM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "one.cpp").write_text("int one;")
    folder = ascend_sim.build.library()
    whole = (folder / "libascend_sim.so").stat().st_size
    (folder / "libascend_sim.so").write_bytes(b"")
    assert ascend_sim.build.library() == folder
    assert (folder / "libascend_sim.so").stat().st_size == whole


def test_cache_that_cannot_be_written(run_python):
    done = run_python(LOAD, ASCEND_SIM_CACHE="/proc/ascend_sim")
    assert "can't write the compiled device to /proc" in last_line(done)
    assert "ASCEND_SIM_CACHE" in last_line(done)


@pytest.mark.parametrize(
    ("package", "version", "message"),
    [
        ("torch_npu", "2.14.0", "torch 2.13.0+cpu with torch_npu 2.14.0 is not a pair that ascend_sim knows"),
        ("torch", "2.10.0", "is not a pair that ascend_sim knows"),
        ("torch_npu", None, "torch_npu is not installed"),
    ],
)
def test_version_that_is_not_known(run_python, package, version, message):
    done = run_python(
        "import importlib.metadata as m\nreal = m.version\n"
        "def version(name):\n"
        f"    if name == {package!r}:\n"
        f"        if {version!r} is None: raise m.PackageNotFoundError(name)\n"
        f"        return {version!r}\n"
        "    return real(name)\n"
        "m.version = version\n" + LOAD
    )
    assert message.replace("2.13.0+cpu", "2.13.0") in last_line(done).replace("2.13.0+cpu", "2.13.0")


def test_torch_npu_imported_first(run_python):
    done = run_python(
        "import sys, types; sys.modules['torch_npu'] = types.ModuleType('torch_npu')\n"
        "import ascend_sim; ascend_sim.load()"
    )
    assert "torch_npu was imported before ascend_sim.load()" in last_line(done)


def test_real_cann_is_not_shadowed(run_python, tmp_path):
    source = tmp_path / "cann.c"
    source.write_text("int nothing;")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libascendcl.so", source], check=True)
    done = run_python(
        "import ascend_sim, sys\n"
        "device = ascend_sim.load()\n"
        "print(device.kind, '|', device.why, '|', 'torch' in sys.modules)",
        LD_LIBRARY_PATH=str(tmp_path),
    )
    kind, why, imported = done.stdout.strip().split(" | ")
    assert (kind, imported) == ("ascend", "False")
    assert "nothing is simulated" in why


def test_load_twice_is_one_load(run_python):
    done = run_python("import ascend_sim as a; print(a.load() is a.load())")
    assert done.stdout.strip() == "True"


def test_warm_load_is_fast(run_python):
    done = run_python(
        "import torch, time\nfrom ascend_sim.build import library\n"
        "start = time.time(); library(); print(time.time() - start)",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert float(done.stdout) < 0.2


def test_processes_that_build_at_once_share_one_build(tmp_path):
    """Three processes start with an empty cache; all work, one compiled. Small sources keep it short."""
    code = (
        "import sys, pathlib\nimport ascend_sim.build as b\nb.SOURCES = pathlib.Path(sys.argv[1])\nprint(b.library())\n"
    )
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "one.cpp").write_text("int one;")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(sources)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "ASCEND_SIM_CACHE": str(tmp_path / "cache")},
        )  # fmt: skip
        for _ in range(3)
    ]
    outputs = [p.communicate(timeout=60) for p in processes]
    assert [p.returncode for p in processes] == [0, 0, 0], outputs
    assert len({out for out, _ in outputs}) == 1
    assert sum("compiled the simulated device" in err for _, err in outputs) == 1


def test_missing_operator_names_itself(run_python):
    done = run_python(
        LOAD + "image, box = torch.ones(1, 1, 4, 4).npu(), torch.ones(1, 5).npu()\n"
        "torch_npu.npu_roi_align(image, box, 1.0, 2, 2, 2, 0)",
        TASK_QUEUE_ENABLE="0",
    )
    assert "operator ROIAlign is not simulated" in done.stderr
    assert done.returncode != 0


def test_unsupported_function_names_itself():
    import ctypes

    device = ctypes.CDLL("libascendcl.so", mode=os.RTLD_NOLOAD)
    device.aclGetRecentErrMsg.restype = ctypes.c_char_p
    assert device.aclrtMapMem() == 207000
    assert device.aclGetRecentErrMsg() == b"[ascend_sim] aclrtMapMem is not simulated"
    assert device.aclGetRecentErrMsg() == b"", "an error is told once"


def test_every_symbol_that_torch_npu_links_to_exists(run_python):
    """The loader would say so only when the function is first called."""
    done = run_python(LOAD + USE, LD_BIND_NOW="1")
    assert done.stdout.strip() == "[1.0, 2.0, 3.0]", done.stderr


def test_kernel_that_throws_surfaces_and_leaves_the_device_usable(run_python):
    done = run_python(
        LOAD + "x = torch.ones(3, device='npu')\n"
        "y = x[torch.tensor([7]).npu()]\n"
        "try: torch.npu.synchronize()\n"
        "except RuntimeError as e: print('raised', 'aclnnIndex: index 7 is out of bounds for dimension 0' in str(e))\n"
        "print((x + 1).tolist())",
        TASK_QUEUE_ENABLE="0",
    )
    assert done.stdout.split("\n")[:2] == ["raised True", "[2.0, 2.0, 2.0]"], done.stdout + done.stderr


def test_threads_of_the_host_are_left_alone(run_python):
    done = run_python(
        "import ascend_sim, os; ascend_sim.load(); import torch, torch_npu\n"
        "before = torch.get_num_threads(); torch.ones(3).npu().add(1).cpu()\n"
        "print(before == torch.get_num_threads())"
    )
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_command_says_what_is_simulated(arguments):
    done = subprocess.run([sys.executable, "-m", "ascend_sim", *arguments], capture_output=True, text=True)
    assert done.returncode == 0
    assert "simulated" in done.stdout
