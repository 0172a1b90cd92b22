"""The operators, judged by PyTorch's OpInfo database: every sample input on ``npu`` and on ``cpu``, bit for bit.

    right       every sample equal, in every type that torch_npu takes, in the gradients, in place and into ``out``
    missing     a sample raised: an operator that is not simulated, one that torch_npu has none for and would compute
                on the CPU, or a sample that torch_npu itself refuses
    wrong       a sample that differs, or whose kernel raised, or that ended the process. There must be none
    decomposed  differs because torch_npu computes it by other operators than the CPU does; the reason is given
    random      drawn numbers: right in shape and type, and the same again for the same seed

An operator that PyTorch's CPU does not have is left out.
"""

import contextlib
import importlib.util
import json as json_module
import os
import queue
import re
import subprocess
import sys
import threading
import warnings
from collections import defaultdict

from . import LoadError, load

DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


def _words(text: str) -> list[str]:
    return text.split()


# A part that is quick and fixed: what models and notebooks use most.
QUICK = _words("""
abs add sub mul div.no_rounding_mode div.floor_rounding true_divide pow exp log sqrt rsqrt sin cos tanh sigmoid erf neg
reciprocal clamp maximum minimum where masked_fill eq ne lt le gt ge logical_and logical_not bitwise_and isnan isfinite
floor round sign lerp addcmul addcdiv remainder floor_divide sum mean amax amin max.reduction_with_dim argmax argmin all
any prod std var cumsum cumprod logsumexp norm linalg.vector_norm count_nonzero cat stack repeat flip roll tril triu
arange linspace eye full zeros ones float half long bool contiguous expand permute transpose narrow split chunk select
index_select gather scatter scatter_add __getitem__ index_put take_along_dim masked_select nonzero sort topk
mm bmm matmul addmm baddbmm mv dot einsum nn.functional.linear softmax log_softmax nn.functional.gelu
nn.functional.silu nn.functional.relu nn.functional.layer_norm nn.functional.rms_norm nn.functional.group_norm
nn.functional.batch_norm nn.functional.embedding nn.functional.cross_entropy nn.functional.nll_loss
nn.functional.mse_loss nn.functional.conv2d nn.functional.max_pool2d nn.functional.avg_pool2d
nn.functional.scaled_dot_product_attention nn.functional.dropout randn_like multinomial bernoulli
""")
QUICK_SAMPLES, QUICK_DTYPES = 4, ("float32", "bfloat16", "int64", "bool")

# Drawn numbers are compared with those of a second draw from the same seed.
RANDOM = set(
    _words("""
    cauchy exponential geometric log_normal normal normal.in_place normal.number_mean uniform randn randn_like
    rand_like randint randint_like bernoulli multinomial nn.functional.dropout nn.functional.dropout2d
    nn.functional.dropout3d nn.functional.alpha_dropout nn.functional.feature_alpha_dropout.with_train
    nn.functional.rrelu nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
    svd_lowrank pca_lowrank nn.functional.multi_head_attention_forward
    """)
)
# Nobody says what is in it.
UNDEFINED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
UNDEFINED |= {"resize_", "resize_as_"}

# What differs for a reason that is torch_npu's: the reason, where it was understood.
_MATMUL = "torch_npu has one matmul operator with a backward of its own, where the CPU folds into mm, mv and bmm"
_ROWS = (
    "torch_npu lays out results by rows where the CPU's LAPACK does by columns, so what follows sums in another order"
)
DECOMPOSED = {
    "matmul": _MATMUL,
    "__rmatmul__": _MATMUL,
    "linalg.matrix_power": _MATMUL,
    "nn.functional.linear_cross_entropy": _MATMUL,
    "nn.functional.linear_cross_entropy.chunked": _MATMUL,
    "nn.functional.linear_cross_entropy.chunked_none": _MATMUL,
    "qr": _ROWS,
    "linalg.qr": _ROWS,
    "linalg.cholesky": _ROWS,
    "svd": _ROWS,
    "linalg.svd": _ROWS,
    "pinverse": _ROWS,
    "linalg.pinv": _ROWS,
    "linalg.pinv.singular": f"{_MATMUL}; and its results are contiguous where the CPU's keep the operand's strides",
    "nn.functional.scaled_dot_product_attention": "torch_npu composes it of matmul and softmax, equal to the CPU's "
    "backend MATH; the CPU's default is a flash kernel",
    "cdist": "torch_npu asks for the mode without matmul whenever p is 2",
    "renorm": "torch_npu has its own formula for the backward",
    "nn.functional.gelu": "torch_npu calls one operator whatever `approximate` says; here it is the exact form",
}
_FFT = "torch_npu transforms by products with a matrix and scales afterwards"
DECOMPOSED |= {
    f"fft.{name}": _FFT
    for name in _words("""
    fft fft2 fftn hfft hfft2 hfftn rfft rfft2 rfftn ifft ifft2 ifftn ihfft ihfft2 ihfftn irfft irfft2 irfftn
    """)
}

# What means something else in torch_npu, so that the samples say nothing.
OTHER_ARGUMENTS = {
    "native_dropout_backward": "a mask of torch_npu has a bit for each element, that of the sample a bool"
}

LEGEND = {
    "right": "every sample equal, bit for bit",
    "random": "drawn numbers: the same again for the same seed",
    "missing": "not simulated, or torch_npu has no operator or refuses it, in a sample; others may be right",
    "decomposed": "differs, because torch_npu computes it by other operators than the CPU",
    "wrong": "a sample differs; there must be none",
}

NOT_SIMULATED = ("not in libopapi", "is not simulated", "Single operator not found")


def report(json: bool = False, quick: bool = False) -> int:
    """Judge the operators and print what was found; 0 if none is wrong. ``quick`` takes a fixed part of them."""
    try:
        found = judge(quick=quick, progress=not json and sys.stderr.isatty())
    except LoadError as e:
        print(f"ascend_sim: {e}", file=sys.stderr)
        return 1
    if json:
        print(json_module.dumps(found, indent=1))
    else:
        total = sum(len(found[verdict]) for verdict in LEGEND)
        print(f"{total} entries of PyTorch's OpInfo database, each sample on npu and on cpu")
        for verdict, meaning in LEGEND.items():
            print(f"\n{verdict}: {len(found[verdict])} ({meaning})")
            for name in found[verdict]:
                why = found["why"].get(name)
                print(f"  {name}" + (f": {why}" if why else ""))
    return 1 if found["wrong"] else 0


def judge(quick: bool = False, names: list[str] | None = None, jobs: int | None = None, progress=False) -> dict:
    """An object with the lists right, missing, wrong, decomposed and random, and ``why`` (name -> reason)."""
    if not importlib.util.find_spec("expecttest"):  # torch.testing imports it
        raise LoadError("the OpInfo database needs expecttest: pip install expecttest")
    todo: queue.SimpleQueue = queue.SimpleQueue()
    all_names = names or (QUICK if quick else _names())
    for name in all_names:
        todo.put(name)
    verdicts: dict[str, dict] = {}
    threads = [
        threading.Thread(target=_supervise, args=(todo, verdicts, quick, progress and len(all_names)))
        for _ in range(jobs or len(os.sched_getaffinity(0)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found: dict = {key: [] for key in ("right", "missing", "wrong", "decomposed", "random")}
    found["why"] = {}
    for name in all_names:
        verdict, why = verdicts[name]["verdict"], verdicts[name]["why"]
        if verdict in found:
            found[verdict].append(name)
            if why:
                found["why"][name] = why
    return found


def _names() -> list[str]:
    code = "import ascend_sim.opinfo as o; print(*map(o._name, o._database()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_environment())
    if done.returncode:
        raise LoadError(done.stderr.strip().splitlines()[-1])
    return done.stdout.splitlines()[-1].split()  # torch_npu prints a line of its own before


def _environment() -> dict[str, str]:
    path = os.pathsep.join([os.path.dirname(os.path.dirname(os.path.abspath(__file__))), *sys.path])
    # An operator that torch_npu would quietly compute on the CPU is not one of the device: let it raise.
    fixed = {"TORCH_NPU_FALLBACK_CPU_DISABLE": "1", "TASK_QUEUE_ENABLE": "0", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return {**os.environ, **fixed, "PYTHONPATH": path}


def _supervise(todo: queue.SimpleQueue, verdicts: dict, quick: bool, total: int) -> None:
    """Give names to a worker process, one at a time, and start another when one ends the process."""
    worker = None
    while True:
        try:
            name = todo.get_nowait()
        except queue.Empty:
            break
        if worker is None or worker.poll() is not None:
            command = [sys.executable, "-m", "ascend_sim.opinfo"]
            options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            worker = subprocess.Popen(command, text=True, env=_environment(), **options)
        timer = threading.Timer(600, worker.kill)
        timer.start()
        try:
            worker.stdin.write(json_module.dumps([name, quick]) + "\n")
            worker.stdin.flush()
            line = next((x for x in iter(worker.stdout.readline, "") if x.startswith("{")), "")
        except BrokenPipeError:
            line = ""
        timer.cancel()
        if line:
            verdicts[name] = json_module.loads(line)
        else:
            verdicts[name] = {"verdict": "wrong", "why": f"ended the process (exit code {worker.wait()})"}
        if total:
            print(f"\r{len(verdicts)}/{total} {name:60}", end="", file=sys.stderr)
    if worker:
        worker.stdin.close()
        worker.wait()


def _database() -> list:
    load()
    import torch
    import torch_npu  # noqa: F401
    from torch.testing._internal.common_methods_invocations import op_db

    torch.set_num_threads(1)  # as the device: the bits of a sum depend on it
    warnings.simplefilter("always")
    warnings.showwarning = _hear
    return op_db


def _name(op) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def _work() -> None:
    """A worker: a line of JSON in, [name, quick]; a line out, {verdict, why}."""
    operators = {_name(op): op for op in _database()}
    for line in sys.stdin:
        name, quick = json_module.loads(line)
        print(json_module.dumps(_judge_one(operators[name], quick)), flush=True)


def _judge_one(op, quick: bool) -> dict:
    import torch

    name = _name(op)
    if name in OTHER_ARGUMENTS:
        return {"verdict": "missing", "why": OTHER_ARGUMENTS[name], "tally": {}}
    tally: dict[str, dict[str, int]] = {}  # type -> verdict -> how many
    reasons: dict[str, str] = {}  # verdict -> the first reason
    for dtype_name in QUICK_DTYPES if quick else DTYPES:
        dtype = getattr(torch, dtype_name)
        if dtype not in op.dtypes:
            continue
        counts = tally[dtype_name] = defaultdict(int)
        for form in _forms(op, dtype):
            if form and counts["refused"] and not counts["right"]:
                break  # a type that torch_npu does not take
            for i, sample in enumerate(_samples(op, dtype, form == "gradient")):
                if quick and i == QUICK_SAMPLES:
                    break
                verdict, why = _judge_sample(op, name, sample, form)
                counts[verdict] += 1
                reasons.setdefault(verdict, f"{dtype_name}{form and ', '}{form}: {why}")
    counted = {verdict for counts in tally.values() for verdict in counts}
    for verdict in ("wrong", "missing", "decomposed"):
        if verdict in counted:
            why = DECOMPOSED[name] if verdict == "decomposed" else reasons[verdict]
            return {"verdict": verdict, "why": why, "tally": tally}
    # A type that torch_npu takes in no sample is not one of the operator's.
    partly = [d for d, c in tally.items() if c["refused"] and c["right"]]
    if partly or ("refused" in counted and "right" not in counted):
        return {"verdict": "missing", "why": f"refused by torch_npu, {reasons['refused']}", "tally": tally}
    if "right" not in counted:
        return {"verdict": "absent", "why": "", "tally": tally}
    return {"verdict": "random" if name in RANDOM else "right", "why": "", "tally": tally}


def _forms(op, dtype) -> list[str]:
    """The ways to call it: plain, with its gradient, in place, into ``out``."""
    has_gradient = op.supports_autograd and dtype in op.backward_dtypes and dtype.is_floating_point
    forms = {"": True, "gradient": has_gradient, "in place": op.inplace_variant, "out": op.supports_out}
    return [form for form, has in forms.items() if has]


def _samples(op, dtype, gradients: bool):
    import torch

    torch.manual_seed(0)
    try:
        yield from op.sample_inputs("cpu", dtype, requires_grad=gradients)
    except Exception:  # the database has none for the CPU
        return


def _judge_sample(op, name: str, sample, form: str) -> tuple[str, str]:
    """One of right, missing, refused, decomposed, wrong, absent; and why."""
    import torch

    gradients = form == "gradient"
    call = op.inplace_variant if form == "in place" else op.op

    def run(device: str, sample):
        torch.manual_seed(0)
        kwargs = {k: device if k == "device" else v for k, v in sample.kwargs.items()}
        if form == "out":
            kwargs["out"] = torch.utils._pytree.tree_map(lambda x: torch.zeros_like(x, device=device), outputs)
        out = call(sample.input, *sample.args, **kwargs)
        out = sample.output_process_fn_grad(out) if gradients else out
        values = _flatten(out)
        if gradients:
            values += _gradients(values, _flatten([sample.input, sample.args, sample.kwargs]))
        torch.npu.synchronize()  # a sample may ask for a copy that does not block
        return values

    # Copies, made before any run: some operators write to their input.
    first, again = (sample.transform(lambda x: _to(x, "npu")) for _ in range(2))
    try:
        if form == "out":
            outputs = op.op(sample.input, *sample.args, **sample.kwargs)
        if form == "in place":
            sample = sample.transform(lambda x: _copy(x, "cpu"))
        expected = run("cpu", sample)
    except Exception:
        return "absent", ""
    _kernel_error.clear()
    try:
        found = [_to(x, "cpu") for x in run("npu", first)]
        if name in RANDOM or sample.kwargs.get("dropout_p"):
            expected = [_to(x, "cpu") for x in run("npu", again)]
    except Exception as e:
        return _judge_error(e)
    if len(expected) != len(found):
        # torch_npu's formula knows no gradient for one of the inputs
        return "refused" if gradients else "wrong", f"{len(found)} results for {len(expected)}"
    for a, b in zip(expected, found, strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and (a.dtype, a.shape) != (b.dtype, b.shape):
            # torch_npu makes the results that an operator writes to
            return "refused", f"a result {_short(b)} for {_short(a)}"
        if why := _difference(a, b, name in UNDEFINED):
            close = name in DECOMPOSED and torch.allclose(a.double(), b.double(), rtol=0.02, atol=0.02, equal_nan=True)
            return "decomposed" if close else "wrong", f"{why}, for {_describe(sample)}"
    return "right", ""


def _judge_error(error: Exception) -> tuple[str, str]:
    import torch

    with contextlib.suppress(Exception):
        torch.npu.synchronize()  # what else was under way, and its error
    text = " ".join(str(error).split())
    if no_kernel := re.search(r"The operator '(.+?)' would execute", text):
        return "missing", f"torch_npu has no {no_kernel[1]}, it would compute it on the CPU"
    if old_kind := re.search(r"OPS function error: (\w+), error code is 100024", text):
        return "missing", f"{old_kind[1]} (an operator of the older interface) is not simulated"
    if in_error := re.search(r"\[ascend_sim\] (aclnn.+)", text):
        _kernel_error.append(in_error[1])
    if _kernel_error:
        # torch_npu asked for a result of a type that the operator does not give. CANN refuses it before the launch.
        refused = "can't be cast to the desired output type" in _kernel_error[0]
        return "refused" if refused else "wrong", _kernel_error[0][:300]
    if "507015" in text:
        return "wrong", "a kernel raised"
    why = text.split(" [ERROR] ")[0][:300]  # what follows is the time and the process
    return "missing" if any(x in text for x in NOT_SIMULATED) else "refused", why


_kernel_error: list[str] = []  # what a kernel of the simulated device raised: torch_npu passes it on as a warning


def _hear(message, *_args, **_kwargs) -> None:
    text = str(message)
    if "[ascend_sim]" in text:
        _kernel_error.append(text.split("[ascend_sim] ")[1].split("\n")[0].split("Exception raised from")[0])


def _to(x, device: str):
    """``x`` on the device: itself, or a copy."""
    import torch

    return x if not isinstance(x, torch.Tensor) or x.device.type == device else _copy(x, device)


def _copy(x, device: str):
    """A copy with the strides of ``x`` and what lies between; a leaf if ``x`` asks for a gradient."""
    import torch

    if not isinstance(x, torch.Tensor):
        return x
    y = x.detach()
    if y.layout == torch.strided and not y.is_conj() and not y.is_neg() and y.device.type == "cpu":
        whole = y.untyped_storage().nbytes() // y.element_size()
        y = y.as_strided((whole,), (1,), 0).to(device, copy=True).as_strided(y.shape, y.stride(), y.storage_offset())
    return y.to(device).requires_grad_(x.requires_grad)


def _flatten(x) -> list:
    import torch

    leaves = torch.utils._pytree.tree_leaves(x)
    return [leaf for leaf in leaves if isinstance(leaf, (torch.Tensor, bool, int, float, complex))]


def _gradients(outputs: list, inputs: list) -> list:
    import torch

    outputs = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
    inputs = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    if not outputs or not inputs:
        return []
    weights = [torch.linspace(-1, 1, x.numel()).reshape(x.shape).to(x.device, x.dtype) for x in outputs]
    found = torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
    return [x for x in found if x is not None]


def _difference(a, b, shape_only: bool) -> str:
    import torch

    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        same = type(a) is type(b) and (a == b or a != a and b != b)
        return "" if same or shape_only else f"{b} for {a}"
    if shape_only or not a.numel():
        return ""
    if a.layout != b.layout:
        return f"{b.layout} for {a.layout}"
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    a, b = (x.detach().resolve_conj().resolve_neg().contiguous() for x in (a, b))
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    both_nan = a.isnan() & b.isnan() if a.is_floating_point() else torch.zeros_like(a, dtype=torch.bool)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    differ = (a.reshape(-1).view(bits) != b.reshape(-1).view(bits)) & ~both_nan.reshape(-1)
    if not differ.any():
        return ""
    i = int(differ.nonzero()[0])
    return f"{int(differ.sum())} of {differ.numel()} differ, {b.reshape(-1)[i].item()} for {a.reshape(-1)[i].item()}"


def _short(x) -> str:
    import torch

    return f"{str(x.dtype)[6:]}{list(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)


def _describe(sample) -> str:
    import torch

    parts = torch.utils._pytree.tree_map(_short, [sample.input, *sample.args])
    return (", ".join(map(str, parts)) + "".join(f", {k}={_short(v)}" for k, v in sample.kwargs.items()))[:200]


if __name__ == "__main__":
    _work()
