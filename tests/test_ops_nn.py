"""The operators of neural networks on the simulated device: products, activations, norms, indexing, convolutions,
losses and attention, with their gradients.

Each result equals that of the CPU bit for bit. Where it can't, because torch_npu takes other steps than the CPU does,
a test at the end says which and how far off it is.
"""

import math

import pytest
import torch
import torch.nn.functional as F
import torch_npu
from own_steps import pytorchs_own_steps, run_again
from torch import nn

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
FLOATS = (F32, F16, BF16)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

# How an operand of a given shape lies in memory.
LAYOUTS = {
    "contiguous": lambda shape, make: make(shape),
    "transposed": lambda shape, make: make((*shape[:-2], shape[-1], shape[-2])).mT if len(shape) > 1 else make(shape),
    "sliced": lambda shape, make: make((*shape[:-1], 2 * shape[-1] + 1))[..., 1::2],
}


def operands(shapes, dtype, layout="contiguous"):
    """The same views of the same values on the CPU and on the device. What is not a shape is passed on."""
    generator = torch.Generator().manual_seed(0)
    found = ([], [])
    for shape in shapes:
        bases = []

        def make(size, bases=bases):
            bases.append(torch.randn(size, generator=generator).to(dtype))
            return bases[0]

        cpu = LAYOUTS[layout](shape, make)
        npu = LAYOUTS[layout](shape, lambda size, bases=bases: bases[0].npu())
        for side, x in zip(found, (cpu, npu), strict=True):
            side.append(x.requires_grad_())
    return found


def results(function, inputs):
    """What a function gives, then the gradients of its inputs."""
    out = function(*inputs)
    out = out if isinstance(out, (tuple, list)) else (out,)
    found = [x.detach() for x in out]
    differentiable = [x for x in out if x.requires_grad]
    if differentiable:
        seeds = [torch.arange(x.numel()).sin().view(x.shape).to(x) for x in differentiable]
        found += [g for g in torch.autograd.grad(differentiable, inputs, seeds, allow_unused=True) if g is not None]
    return found


def assert_same(expected, found):
    assert len(expected) == len(found)
    for a, b in zip(expected, found, strict=True):
        assert b.device.type == "npu"
        b = b.cpu()
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan()), (a - b).abs().max()


def check(function, shapes, dtype=F32, layout="contiguous"):
    cpu, npu = operands(shapes, dtype, layout)
    assert_same(results(function, cpu), results(function, npu))


def cases(table):
    return pytest.mark.parametrize("function, shapes", [pytest.param(*case, id=name) for name, case in table.items()])


def on(x, values):
    return torch.tensor(values, device=x.device)


each_float = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
each_layout = pytest.mark.parametrize("layout", LAYOUTS)

# --- Products and decompositions ---

PRODUCTS = {
    "mm": (torch.mm, [(16, 32), (32, 48)]),
    "mm of nothing": (torch.mm, [(0, 8), (8, 4)]),
    "mm over nothing": (torch.mm, [(4, 0), (0, 8)]),
    "addmm": (lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2), [(8,), (16, 32), (32, 8)]),
    "addmm_": (lambda b, x, w: b.clone().addmm_(x, w), [(16, 8), (16, 32), (32, 8)]),
    "bmm": (torch.bmm, [(3, 16, 32), (3, 32, 16)]),
    "baddbmm": (torch.baddbmm, [(16, 8), (3, 16, 32), (3, 32, 8)]),
    "addbmm": (torch.addbmm, [(16, 8), (3, 16, 32), (3, 32, 8)]),
    "mv": (torch.mv, [(8, 16), (16,)]),
    "addmv": (torch.addmv, [(8,), (8, 16), (16,)]),
    "dot": (torch.dot, [(16,), (16,)]),
    "outer": (torch.outer, [(8,), (16,)]),
    "addr": (torch.addr, [(8, 16), (8,), (16,)]),
    "matmul 4-d": (torch.matmul, [(2, 3, 16, 8), (2, 3, 8, 16)]),
    "linear": (F.linear, [(2, 8, 16), (32, 16), (32,)]),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), [(2, 8, 16), (2, 4, 16)]),
}


@each_layout
@each_float
@cases(PRODUCTS)
def test_product(function, shapes, dtype, layout):
    check(function, shapes, dtype, layout)


@pytorchs_own_steps
@each_layout
@each_float
@cases({
    "matmul broadcast": (torch.matmul, [(2, 1, 16, 8), (3, 8, 16)]),
    "matmul vector": (torch.matmul, [(2, 16, 8), (8,)]),
    "linear without bias": (F.linear, [(2, 8, 16), (32, 16)]),
})  # fmt: skip
def test_product_by_own_steps(function, shapes, dtype, layout):
    check(function, shapes, dtype, layout)


@pytorchs_own_steps
@each_layout
@each_float
def test_tanh_gelu_by_own_steps(dtype, layout):
    check(lambda x: F.gelu(x, approximate="tanh"), [(3, 4, 10)], dtype, layout)


def test_again_with_pytorchs_own_steps():
    run_again(__file__)


def definite(x):
    return x @ x.mT + 4 * torch.eye(x.shape[-1], device=x.device)


@cases({
    "inverse": (lambda x: torch.inverse(definite(x)), [(3, 4, 4)]),
    "det": (lambda x: torch.det(definite(x)), [(3, 4, 4)]),
    "solve": (lambda a, b: torch.linalg.solve(definite(a), b), [(3, 4, 4), (3, 4, 2)]),
    "cholesky": (lambda x: torch.linalg.cholesky(definite(x).detach()), [(3, 4, 4)]),
    "qr": (lambda x: torch.linalg.qr(x.detach()), [(5, 3)]),
    "svd": (lambda x: torch.linalg.svd(x.detach(), full_matrices=False), [(5, 3)]),
    "slogdet": (lambda x: torch.slogdet(definite(x).detach()), [(4, 4)]),
    "cross": (torch.linalg.cross, [(4, 3), (4, 3)]),
    "triangular": (lambda a, b: torch.linalg.solve_triangular(definite(a), b, upper=True), [(4, 4), (4, 2)]),
    "triangular from the right": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False, left=False), [(3, 5, 5), (3, 5, 5)]
    ),
    "triangular_solve": (lambda a, b: torch.triangular_solve(b, definite(a))[0].detach(), [(4, 4), (4, 2)]),
    "cdist": (lambda a, b: torch.cdist(a.detach(), b.detach()), [(3, 4), (5, 4)]),
})  # fmt: skip
def test_linear_algebra(function, shapes):
    check(function, shapes)


# --- Activations ---

NAMES = (
    "gelu silu relu leaky_relu elu selu celu hardtanh relu6 hardswish hardsigmoid mish softplus hardshrink softshrink "
    "logsigmoid softsign tanhshrink glu"
)
ACTIVATIONS = {name: getattr(F, name) for name in NAMES.split()}
ACTIVATIONS["sigmoid"] = torch.sigmoid
ACTIVATIONS["tanh"] = torch.tanh
ACTIVATIONS["threshold"] = lambda x: F.threshold(x, 0.1, 2.0)


@each_layout
@each_float
@pytest.mark.parametrize("function", ACTIVATIONS.values(), ids=list(ACTIVATIONS))
def test_activation(function, dtype, layout):
    check(function, [(3, 4, 10)], dtype, layout)
    check(function, [(0, 4)], dtype)


@each_layout
@pytest.mark.parametrize("name", ["relu_", "sigmoid_", "tanh_", "leaky_relu_", "elu_", "hardtanh_", "threshold_"])
def test_activation_in_place(name, layout):
    arguments = {"leaky_relu_": (0.2,), "threshold_": (0.1, 2.0)}.get(name, ())
    function = getattr(torch, name, None) or getattr(F, name)
    for x, y in zip(*operands([(3, 4, 10)], F32, layout), strict=True):
        function(x.detach(), *arguments), function(y.detach(), *arguments)
        assert torch.equal(x, y.cpu())


@each_float
def test_activation_with_a_learned_slope(dtype):
    check(F.prelu, [(2, 3, 5), (3,)], dtype)
    check(F.prelu, [(2, 3, 5), (1,)], dtype)


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


# Fused operators that only the device has, and the formula of each in torch.
FUSED = {
    "npu_gelu": (torch_npu.npu_gelu, F.gelu, [(2, 3, 8)]),
    "npu_gelu tanh": (
        lambda x: torch_npu.npu_gelu(x, approximate="tanh"),
        lambda x: F.gelu(x, approximate="tanh"),
        [(2, 3, 8)],
    ),
    "npu_fast_gelu": (torch_npu.npu_fast_gelu, lambda x: x * torch.sigmoid(1.702 * x), [(2, 3, 8)]),
    "npu_swiglu": (torch_npu.npu_swiglu, lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], [(2, 3, 8)]),
    "npu_rms_norm": (
        lambda x, w: torch_npu.npu_rms_norm(x, w, 1e-6)[0],
        lambda x, w: F.rms_norm(x, w.shape, w, 1e-6),
        [(2, 3, 8), (8,)],
    ),
    "npu_rotary_mul": (torch_npu.npu_rotary_mul, rotated, [(2, 3, 4, 8), (1, 3, 1, 8), (1, 3, 1, 8)]),
}


@pytest.mark.parametrize("fused, formula, shapes", FUSED.values(), ids=list(FUSED))
def test_fused_operator_is_its_formula(fused, formula, shapes):
    cpu, npu = operands(shapes, F32)
    assert_same(results(formula, cpu), results(fused, npu))


# --- Norms ---

NORMS = {
    "softmax": (lambda x: x.softmax(-1), [(3, 4, 10)]),
    "softmax over columns": (lambda x: x.softmax(1), [(3, 4, 10)]),
    "log_softmax": (lambda x: x.log_softmax(-1), [(3, 4, 10)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, w.shape, w, b), [(3, 4, 10), (10,), (10,)]),
    "layer_norm over two": (lambda x, w, b: F.layer_norm(x, w.shape, w, b), [(3, 4, 10), (4, 10), (4, 10)]),
    "layer_norm plain": (lambda x: F.layer_norm(x, (10,)), [(3, 4, 10)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [(3, 4, 10), (4,), (4,)]),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), [(3, 4, 10), (4,), (4,)]),
    "instance_norm": (lambda x: F.instance_norm(x), [(3, 4, 10)]),
}


@each_layout
@each_float
@cases(NORMS)
def test_norm(function, shapes, dtype, layout):
    check(function, shapes, dtype, layout)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_keeps_running_statistics(training):
    x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    cpu, npu = (nn.BatchNorm1d(3).train(training).to(device) for device in ("cpu", "npu"))
    for _ in range(3):
        assert torch.equal(cpu(x), npu(x.npu()).cpu())
    for name, value in cpu.state_dict().items():
        assert torch.equal(value, npu.state_dict()[name].cpu()), name


# --- Reading and writing at computed places ---

INDEXING = {
    "embedding": (lambda w: F.embedding(on(w, [[1, 2], [3, 1]]), w), [(5, 8)]),
    "embedding with padding": (lambda w: F.embedding(on(w, [1, 3, 3]), w, padding_idx=3), [(5, 8)]),
    "embedding_bag": (lambda w: F.embedding_bag(on(w, [1, 3, 3]), w.detach(), on(w, [0, 2])), [(5, 8)]),
    "index_select": (lambda x: x.index_select(1, on(x, [1, 2, 1])), [(4, 5, 3)]),
    "gather": (lambda x: x.gather(1, on(x, [[0, 2, 2]] * 4)), [(4, 5)]),
    "take": (lambda x: x.take(on(x, [1, 2, 19])), [(4, 5)]),
    "take_along_dim": (lambda x: x.take_along_dim(x.argsort(1), 1), [(4, 5)]),
    "scatter": (lambda x, s: x.scatter(0, on(x, [[3, 1, 2, 0, 2]]), s), [(4, 5), (1, 5)]),
    "scatter a number": (lambda x: x.scatter(0, on(x, [[3, 1, 2, 0, 2]]), 7.0), [(4, 5)]),
    "scatter_add": (lambda x, s: x.scatter_add(0, on(x, [[3, 1, 2, 0, 2]] * 2), s), [(4, 5), (2, 5)]),
    "scatter_reduce": (lambda x, s: x.scatter_reduce(0, on(x, [[3, 1, 2, 0, 2]]), s, "amax"), [(4, 5), (1, 5)]),
    "index_add": (lambda x, s: x.index_add(0, on(x, [3, 0, 3]), s, alpha=2), [(4, 5), (3, 5)]),
    "index_copy": (lambda x, s: x.index_copy(0, on(x, [3, 0, 1]), s), [(4, 5), (3, 5)]),
    "index_fill": (lambda x: x.index_fill(0, on(x, [3, 0]), 2.0), [(4, 5)]),
    "put": (lambda x, s: x.put(on(x, [1, 5, 7]), s), [(4, 5), (3,)]),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 1.0), [(4, 5)]),
    "masked_scatter": (lambda x, s: x.masked_scatter(x > 0, s), [(4, 5), (20,)]),
    "masked_select": (lambda x: x.masked_select(x > 0), [(4, 5)]),
    "[rows]": (lambda x: x[on(x, [3, 0, 3])], [(4, 5)]),
    "[:, columns]": (lambda x: x[:, on(x, [3, 0, 3])], [(4, 5, 2)]),
    "[rows, columns]": (lambda x: x[on(x, [3, 0]), on(x, [1, 4])], [(4, 5)]),
    "[rows, :, columns]": (lambda x: x[on(x, [3, 0]), :, on(x, [1, 0])], [(4, 5, 2)]),
    "[mask]": (lambda x: x[x > 0], [(4, 5)]),
    "[mask of rows]": (lambda x: x[on(x, [True, False, True, True])], [(4, 5)]),
    "[mask of none]": (lambda x: x[x > 100], [(4, 5)]),
    "[no rows]": (lambda x: x[on(x, []).long()], [(4, 5)]),
    "index_put": (lambda x, s: x.index_put((on(x, [3, 0]),), s), [(4, 5), (2, 5)]),
    "index_put adds": (lambda x, s: x.index_put((on(x, [3, 3]),), s, accumulate=True), [(4, 5), (2, 5)]),
    "sort": (lambda x: x.sort(-1, descending=True), [(4, 5)]),
    "argsort": (lambda x: x.argsort(0), [(4, 5)]),
    "topk": (lambda x: x.topk(2), [(4, 5)]),
    "kthvalue": (lambda x: x.kthvalue(2), [(4, 5)]),
    "repeat_interleave": (lambda x: x.repeat_interleave(on(x, [2, 0, 1, 3]), 0), [(4, 5)]),
    "unfold": (lambda x: x.unfold(0, 2, 1), [(4, 5)]),
}


@each_layout
@each_float
@cases(INDEXING)
def test_indexing(function, shapes, dtype, layout):
    check(function, shapes, dtype, layout)


INTEGERS = {
    "nonzero": lambda x: (x > 2).nonzero(),
    "nonzero as tuple": lambda x: (x > 2).nonzero(as_tuple=True),
    "argwhere": lambda x: torch.argwhere(x > 2),
    "unique": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "unique rows": lambda x: torch.unique(x % 2, dim=0, return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
    "sort": lambda x: x.sort(-1),
    "topk": lambda x: x.topk(2, 0, largest=False),
    "gather": lambda x: x.gather(1, x % 5),
    "one_hot": lambda x: F.one_hot(x, 9),
    "bincount": lambda x: torch.bincount(x.flatten()),
    "searchsorted": lambda x: torch.searchsorted(on(x, [1, 3, 5]), x, right=True),
    "bucketize": lambda x: torch.bucketize(x, on(x, [1, 3, 5])),
    "isin": lambda x: torch.isin(x, on(x, [1, 3])),
    "set rows": lambda x: x.clone().index_put_((on(x, [1, 3]),), on(x, 7)),
    "set where": lambda x: x.clone().masked_fill_(x > 2, 7),
    "mm": lambda x: x @ x.mT,
}


@pytest.mark.parametrize("function", INTEGERS.values(), ids=list(INTEGERS))
def test_integers(function):
    x = torch.randint(0, 9, (4, 5), generator=torch.Generator().manual_seed(0))
    assert_same(results(function, [x]), results(function, [x.npu()]))


def test_writing_to_an_index_of_no_elements_writes_nothing():
    x = torch.arange(6, device="npu")
    x[torch.tensor([], dtype=torch.long, device="npu")] = 7
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


# --- Convolutions, pools, resolution ---

IMAGE = (2, 4, 9, 9)
CONVOLUTIONS = {
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1), [(2, 4, 9), (6, 4, 3), (6,)]),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), [IMAGE, (6, 4, 3, 3), (6,)]),
    "conv2d of one image": (F.conv2d, [IMAGE[1:], (6, 4, 3, 3)]),
    "conv2d in groups": (lambda x, w: F.conv2d(x, w, groups=4, dilation=2), [IMAGE, (4, 1, 3, 3)]),
    "conv3d": (F.conv3d, [(1, 2, 4, 4, 4), (3, 2, 2, 2, 2), (3,)]),
    "conv_transpose2d": (lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2), [IMAGE, (4, 3, 3, 3), (3,)]),
    "patches": (lambda x, w: F.conv2d(x, w, stride=3), [IMAGE, (8, 4, 3, 3)]),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), [(2, 4, 9)]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), [IMAGE]),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), [(1, 2, 4, 4, 4)]),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), [IMAGE]),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), [(1, 2, 4, 4, 4)]),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), [IMAGE]),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), [IMAGE]),
    "unfold": (lambda x: F.unfold(x, 3), [IMAGE]),
    "fold": (lambda x: F.fold(x, (4, 4), 2), [(2, 12, 9)]),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), [IMAGE]),
    "grid_sample": (lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), [IMAGE, (2, 4, 4, 2)]),
    "affine_grid": (lambda t: F.affine_grid(t, IMAGE, align_corners=False), [(2, 2, 3)]),
}
for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area"):
    CONVOLUTIONS[f"interpolate {mode}"] = lambda x, m=mode: F.interpolate(x, scale_factor=1.7, mode=m), [IMAGE]
    CONVOLUTIONS[f"interpolate {mode} to size"] = lambda x, m=mode: F.interpolate(x, (4, 11), mode=m), [IMAGE]
for mode in ("reflect", "replicate", "circular", "constant"):
    CONVOLUTIONS[f"pad {mode}"] = lambda x, m=mode: F.pad(x, (1, 2, 0, 1), mode=m), [IMAGE]


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@cases(CONVOLUTIONS)
def test_convolution(function, shapes, layout):
    check(function, shapes, layout=layout)


@pytest.mark.parametrize("name", ["conv2d", "max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=["float16", "bfloat16"])
def test_convolution_in_16_bits(name, dtype):
    check(*CONVOLUTIONS[name], dtype)


# --- Losses ---

LOSSES = {
    "cross_entropy": lambda x, r: F.cross_entropy(x, on(x, [1, 2, 0, 3]), reduction=r),
    "cross_entropy ignoring": lambda x, r: F.cross_entropy(x, on(x, [1, 2, 0, 2]), reduction=r, ignore_index=2),
    "cross_entropy smoothed": lambda x, r: F.cross_entropy(x, on(x, [1, 2, 0, 3]), reduction=r, label_smoothing=0.1),
    "cross_entropy weighted": lambda x, r: F.cross_entropy(
        x, on(x, [1, 2, 0, 3]), torch.arange(1, 7, device=x.device).to(x), reduction=r
    ),
    "cross_entropy of images": lambda x, r: F.cross_entropy(
        x.view(2, 2, 2, 3), on(x, [[[0, 1, 1]] * 2] * 2), reduction=r
    ),
    "mse": lambda x, r: F.mse_loss(x, x.detach() * 0.5, reduction=r),
    "l1": lambda x, r: F.l1_loss(x, x.detach().flip(0), reduction=r),
    "smooth_l1": lambda x, r: F.smooth_l1_loss(x, x.detach().flip(0), reduction=r, beta=0.3),
    "huber": lambda x, r: F.huber_loss(x, x.detach().flip(0), reduction=r, delta=0.3),
    "bce": lambda x, r: F.binary_cross_entropy(x.sigmoid(), x.detach().flip(0).sigmoid(), reduction=r),
    "bce with logits": lambda x, r: F.binary_cross_entropy_with_logits(x, x.detach().flip(0).sigmoid(), reduction=r),
    "kl_div": lambda x, r: F.kl_div(x.log_softmax(-1), x.detach().softmax(-1).flip(0), reduction=r),
    "kl_div of the target": lambda x, r: F.kl_div(x.detach().log_softmax(-1), x.sigmoid(), reduction=r),
    "kl_div of a logarithm": lambda x, r: F.kl_div(x.detach().flip(0), x, reduction=r, log_target=True),
    "soft_margin": lambda x, r: F.soft_margin_loss(x, x.detach().flip(0).sign(), reduction=r),
}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@each_float
@pytest.mark.parametrize("function", LOSSES.values(), ids=list(LOSSES))
def test_loss(function, dtype, reduction):
    check(lambda x: function(x, reduction), [(4, 6)], dtype)


def test_ctc_loss():
    targets = torch.tensor([[1, 2, 3], [4, 1, 0]])
    check(lambda x: F.ctc_loss(x.log_softmax(-1), targets.to(x.device), (6, 6), (3, 2)), [(6, 2, 5)])


# --- Recurrent layers ---

RECURRENT = {
    "LSTM": lambda: nn.LSTM(8, 16),
    "LSTM, batch first": lambda: nn.LSTM(8, 16, batch_first=True),
    "GRU": lambda: nn.GRU(8, 16),
    "GRU, two layers": lambda: nn.GRU(8, 16, num_layers=2, batch_first=True),
    "GRU, both ways": lambda: nn.GRU(8, 16, bidirectional=True),
    "GRU without bias": lambda: nn.GRU(8, 16, bias=False),
}


def recurrent(make, device):
    torch.manual_seed(0)
    return make().to(device), torch.randn(2, 5, 8).to(device).requires_grad_()


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("make", RECURRENT.values(), ids=list(RECURRENT))
def test_recurrent_layer(make, train):
    found = []
    for device in ("cpu", "npu"):
        layer, x = recurrent(make, device)
        y, last = layer.train(train)(x)
        if train:
            (y.sin().sum() + sum(t.cos().sum() for t in last)).backward()
        gradients = [x.grad, *(p.grad for p in layer.parameters())] if train else []
        found.append([y.detach(), *(t.detach() for t in last), *gradients])
    assert_same(*found)


def test_a_captured_recurrent_layer_and_its_gradient():
    layer, x = recurrent(RECURRENT["GRU"], "npu")
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        layer(x)[0].sum().backward()
    torch.npu.current_stream().wait_stream(stream)
    expected = x.grad.cpu()
    x.grad = None
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        layer(x)[0].sum().backward()
    graph.replay()
    assert torch.equal(x.grad.cpu(), expected)


def test_an_lstm_of_several_layers_names_the_older_operator():
    layer, x = recurrent(lambda: nn.LSTM(8, 16, num_layers=2), "npu")
    with pytest.raises(RuntimeError, match="DynamicRNN"):
        layer(x)


def test_dropout_between_layers_says_that_it_is_not_simulated():
    layer, x = recurrent(lambda: nn.GRU(8, 16, num_layers=2, dropout=0.5), "npu")
    with pytest.raises(RuntimeError, match="dropout between layers"):
        layer(x)


# --- Attention ---

QKV = [(2, 4, 8, 16)] * 3
ATTENTION = {
    "all": ({}, QKV),
    "causal": ({"is_causal": True}, QKV),
    "mask": ({"attn_mask": torch.ones(8, 8).tril().bool()}, QKV),
    "padding mask": ({"attn_mask": torch.tensor([[1] * 8, [1] * 5 + [0] * 3]).bool()[:, None, None]}, QKV),
    "scale": ({"scale": 0.3}, QKV),
    "cross": ({}, [QKV[0], (2, 4, 5, 16), (2, 4, 5, 16)]),
    "fewer heads": ({"enable_gqa": True}, [QKV[0], (2, 2, 8, 16), (2, 2, 8, 16)]),
    "narrow values": ({}, [*QKV[:2], (2, 4, 8, 4)]),
}


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@each_float
@pytest.mark.parametrize("options, shapes", ATTENTION.values(), ids=list(ATTENTION))
def test_attention(options, shapes, dtype, layout):
    def attend(*qkv):
        moved = {k: v.to(qkv[0].device) if torch.is_tensor(v) else v for k, v in options.items()}
        return F.scaled_dot_product_attention(*qkv, **moved)

    check(attend, shapes, dtype, layout)


# What each layout of npu_fusion_attention is as batch, head, token, channel, and back.
FUSION = {
    "BNSD": ((2, 4, 8, 16), lambda t: t, lambda t: t),
    "BSND": ((2, 8, 4, 16), lambda t: t.transpose(1, 2), lambda t: t.transpose(1, 2)),
    "BSH": ((2, 8, 64), lambda t: t.unflatten(-1, (4, 16)).transpose(1, 2), lambda t: t.transpose(1, 2).flatten(2)),
    "SBH": (
        (8, 2, 64),
        lambda t: t.unflatten(-1, (4, 16)).permute(1, 2, 0, 3),
        lambda t: t.permute(2, 0, 1, 3).flatten(2),
    ),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layout", FUSION)
def test_fusion_attention(layout, causal):
    shape, split, join = FUSION[layout]
    mask = {"atten_mask": torch.ones(2048, 2048).triu(1).bool().npu(), "sparse_mode": 2} if causal else {}
    cpu, npu = operands([shape] * 3, F32)
    expected = results(
        lambda *qkv: join(F.scaled_dot_product_attention(*(split(t) for t in qkv), is_causal=causal)), cpu
    )
    found = results(lambda *qkv: torch_npu.npu_fusion_attention(*qkv, 4, layout, scale=0.25, **mask)[0], npu)
    assert_same(expected, found)


def test_fusion_attention_over_sequences_of_different_lengths():
    cpu, npu = operands([(9, 4, 16)] * 3, F32)

    def one_by_one(*qkv):
        parts = [
            F.scaled_dot_product_attention(*(t[a:b].transpose(0, 1)[None] for t in qkv))[0].transpose(0, 1)
            for a, b in ((0, 3), (3, 9))
        ]
        return torch.cat(parts)

    def together(*qkv):
        return torch_npu.npu_fusion_attention(
            *qkv, 4, "TND", scale=0.25, actual_seq_qlen=(3, 9), actual_seq_kvlen=(3, 9)
        )[0]

    assert_same(results(one_by_one, cpu), results(together, npu))


# --- Attention for inference, over sequences of different lengths ---

# As above, for layouts of npu_fused_infer_attention_score. Sequences are packed where there is no dimension B.
INFER = {
    **{layout: FUSION[layout] for layout in ("BNSD", "BSND", "BSH")},
    "BNSD_BSND": (FUSION["BNSD"][0], FUSION["BNSD"][1], FUSION["BSND"][2]),
    "BSND_NBSD": (FUSION["BSND"][0], FUSION["BSND"][1], lambda t: t.transpose(0, 1)),
    "TND": ((13, 4, 16), lambda t: t.transpose(0, 1)[None], lambda t: t[0].transpose(0, 1)),
    "NTD_TND": ((4, 13, 16), lambda t: t[None], lambda t: t[0].transpose(0, 1)),
}


def one_by_one(q, k, v, sequences, attend=F.scaled_dot_product_attention):
    """Attention of each (batch, rows, columns) by itself, in operands with the heads first. The rest is zero."""
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for batch, rows, columns in sequences:
        part = [q[batch, None, :, rows], k[batch, None, :, columns], v[batch, None, :, columns]]
        out[batch, :, rows] = attend(*part)[0]
    return out


def assert_infers(layout, expected, qkv, **options):
    found, _ = torch_npu.npu_fused_infer_attention_score(*qkv, num_heads=4, scale=0.25, input_layout=layout, **options)
    assert_same([expected], [found])


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("layout", INFER)
def test_infer_attention_over_lengths(layout, dtype):
    shape, split, join = INFER[layout]
    cpu, npu = operands([shape] * 3, dtype)
    if layout.startswith(("TND", "NTD")):
        # the places where the sequences end
        lengths = {"actual_seq_lengths": [3, 3, 8], "actual_seq_lengths_kv": [6, 8, 13]}
        sequences = [(0, slice(3), slice(6)), (0, slice(3, 8), slice(8, 13))]
    else:
        lengths = {"actual_seq_lengths": [8, 3], "actual_seq_lengths_kv": [5, 7]}
        sequences = [(0, slice(8), slice(5)), (1, slice(3), slice(7))]
    expected = join(one_by_one(*(split(t.detach()) for t in cpu), sequences))
    assert_infers(layout, expected, npu, **lengths)


LENGTHS = {
    "whole": ({}, [8, 8]),
    "one for all": ({"actual_seq_lengths_kv": [5]}, [5, 5]),
    "nothing": ({"actual_seq_lengths_kv": [0, 5]}, [0, 5]),
}


@pytest.mark.parametrize("rows", [8, 1])
@pytest.mark.parametrize("given, columns", LENGTHS.values(), ids=list(LENGTHS))
def test_infer_attention_with_keys_of_other_lengths(given, columns, rows):
    cpu, npu = operands([(2, 4, rows, 16), (2, 2, 8, 16), (2, 2, 8, 16)], F16)
    sequences = [(i, slice(rows), slice(n)) for i, n in enumerate(columns) if n]
    expected = one_by_one(
        *(t.detach() for t in cpu), sequences, lambda *qkv: F.scaled_dot_product_attention(*qkv, enable_gqa=True)
    )
    assert_infers("BNSD", expected, npu, num_key_value_heads=2, **given)


HIDDEN = torch.tensor([[0] * 7 + [1], [0] * 5 + [1] * 3]).bool()
MASKS = {
    "of rows and columns": ([5, 8], HIDDEN[1].repeat(5, 1)),
    "of each batch": ([5, 8], HIDDEN[:, None, None].repeat(1, 1, 5, 1)),
    "of each batch, int8": ([5, 8], HIDDEN[:, None, None].repeat(1, 1, 5, 1).to(torch.int8)),
    "of a single row": ([1, 8], HIDDEN),
}


@pytest.mark.parametrize("size, mask", MASKS.values(), ids=list(MASKS))
def test_infer_attention_with_a_mask(size, mask):
    cpu, npu = operands([(2, 4, size[0], 16), (2, 4, size[1], 16), (2, 4, size[1], 16)], F16)
    seen = (mask[:, None, None] if mask is HIDDEN else mask).logical_not()
    expected = F.scaled_dot_product_attention(*(t.detach() for t in cpu), attn_mask=seen)
    assert_infers("BNSD", expected, npu, atten_mask=mask.npu())


def test_infer_attention_of_single_rows_takes_any_length_of_the_query():
    q, k, v = (torch.randn(2, 4, rows, 16, dtype=F16).npu() for rows in (1, 8, 8))
    options = {"num_heads": 4, "scale": 0.25, "input_layout": "BNSD", "actual_seq_lengths_kv": [5, 7]}
    expected, _ = torch_npu.npu_fused_infer_attention_score(q, k, v, **options)
    found, _ = torch_npu.npu_fused_infer_attention_score(q, k, v, actual_seq_lengths=[100, 100], **options)
    assert_same([expected.cpu()], [found])


def test_infer_attention_is_causal_from_the_end_of_each_sequence():
    """Mode 3: the last token of the query sees all keys. This is decoding with a cache."""
    cpu, npu = operands([(2, 4, 3, 16), (2, 4, 8, 16), (2, 4, 8, 16)], F16)
    lengths, compressed = [5, 8], torch.ones(2048, 2048).triu(1).bool().npu()
    expected = torch.cat([
        F.scaled_dot_product_attention(
            q[i : i + 1], k[i : i + 1, :, :n], v[i : i + 1, :, :n],
            attn_mask=torch.ones(3, n).tril(n - 3).bool(),
        )
        for q, k, v in [[t.detach() for t in cpu]]
        for i, n in enumerate(lengths)
    ])  # fmt: skip
    assert_infers("BNSD", expected, npu, actual_seq_lengths_kv=lengths, atten_mask=compressed, sparse_mode=3)


@pytest.mark.parametrize("layout, size", [("BNSD", (2, 4, 8, 1)), ("TND", (13, 4, 1))])
def test_infer_attention_tells_the_logarithms_of_its_sums(layout, size):
    shape, split, _ = INFER[layout]
    cpu, npu = operands([shape] * 3, F16)
    lengths = {"actual_seq_lengths": [13], "actual_seq_lengths_kv": [13]} if layout == "TND" else {}
    _, found = torch_npu.npu_fused_infer_attention_score(
        *npu, num_heads=4, scale=0.25, input_layout=layout, softmax_lse_flag=True, **lengths
    )
    q, k, _ = (split(t.detach().float()) for t in cpu)
    expected = (q @ k.mT * 0.25).logsumexp(-1, keepdim=True)
    expected = expected[0].transpose(0, 1) if layout == "TND" else expected
    assert found.shape == size and found.dtype == F32
    torch.testing.assert_close(found.cpu(), expected)


def test_infer_attention_into_given_tensors_with_the_largest_workspace():
    """The way by which NPUGraph captures it."""
    _, (q, k, v) = operands([(2, 4, 8, 16)] * 3, F16)
    options = {"num_heads": 4, "scale": 0.25, "input_layout": "BNSD", "actual_seq_lengths_kv": [5, 7]}
    workspace = torch_npu._npu_fused_infer_attention_score_get_max_workspace(q, k, v, **options)
    out = torch_npu._npu_fused_infer_attention_score_infer_output(q, v, num_heads=4, input_layout="BNSD")
    torch_npu.npu_fused_infer_attention_score.out(q, k, v, workspace=workspace, out=out, **options)
    assert_same([torch_npu.npu_fused_infer_attention_score(q, k, v, **options)[0].cpu()], [out[0]])


def test_infer_attention_in_its_second_version_is_the_first():
    _, qkv = operands([(2, 4, 8, 16)] * 3, F16)
    first, _ = torch_npu.npu_fused_infer_attention_score(
        *qkv, num_heads=4, scale=0.25, input_layout="BNSD", actual_seq_lengths_kv=[5, 7]
    )
    second, _ = torch_npu.npu_fused_infer_attention_score_v2(
        *qkv, num_query_heads=4, softmax_scale=0.25, input_layout="BNSD", actual_seq_kvlen=[5, 7]
    )
    assert_same([first.cpu()], [second])


REFUSED = {
    "float32": (F32, {}, "the query is of type Float"),
    "paged keys": (F16, {"block_table": torch.zeros(2, 1, dtype=torch.int32)}, "block_table is not simulated"),
    "quantised output": (F16, {"quant_scale2": torch.ones(1)}, "quant_scale2 is not simulated"),
    "too long": (F16, {"actual_seq_lengths_kv": [5, 9, 5]}, "actual_seq_lengths_kv has 9 where 0 to 8 is possible"),
    "too few": (F16, {"actual_seq_lengths_kv": [5, 5]}, "2 lengths for a batch of 3"),
    "mask": (F16, {"atten_mask": torch.ones(8, 7).bool()}, r"a mask of \[8, 7\] does not cover a sequence of 8 by 8"),
    "heads": (F16, {"num_key_value_heads": 3}, "4 heads of the query can't share 3"),
    "number of heads": (F16, {"num_heads": 2}, "num_heads 2 .* are not those of 4"),
}


@pytest.mark.parametrize("dtype, options, message", REFUSED.values(), ids=list(REFUSED))
def test_infer_attention_refuses_what_is_not_simulated(dtype, options, message):
    _, (q, k, v) = operands([(3, 4, 8, 16), *[(3, options.get("num_key_value_heads", 4), 8, 16)] * 2], dtype)
    moved = {k: x.npu() if torch.is_tensor(x) else x for k, x in options.items()}
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_fused_infer_attention_score(q, k, v, **{"num_heads": 4, "input_layout": "BNSD", **moved})


def test_attention_drops_what_it_says():
    q = torch.zeros(1, 2, 64, 16, device="npu", requires_grad=True)
    v = torch.ones(1, 2, 64, 16, device="npu", requires_grad=True)
    out = F.scaled_dot_product_attention(q, q, v, dropout_p=0.5)
    # Each row is the number of kept places over 64, times two.
    kept = out.detach().cpu() * 32
    assert torch.equal(kept, kept.round()) and 0.8 < out.mean().item() < 1.2 and kept.std() > 0
    out.sum().backward()
    assert torch.isclose(v.grad.sum(), out.sum())


# --- Models ---


class Block(nn.Module):
    def __init__(self, width, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        if self.fused:
            a = F.scaled_dot_product_attention(q, k, v)
        else:
            a = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v
        x = x + self.out(a.transpose(1, 2).flatten(2))
        return x + self.mlp(self.after(x))


class Transformer(nn.Module):
    def __init__(self, fused, words=50, width=32):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        self.blocks = nn.Sequential(*(Block(width, 4, fused) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def train(device, fused, steps=5):
    torch.manual_seed(0)
    model = Transformer(fused).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(0, 50, (2, 17), generator=generator).to(device)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.cpu() for name, value in model.state_dict().items()}


@pytorchs_own_steps
def test_a_transformer_with_matmul_trains_by_own_steps_as_on_the_cpu():
    trains_as_on_the_cpu(fused=False)


def test_a_transformer_with_fused_attention_trains_as_on_the_cpu():
    trains_as_on_the_cpu(fused=True)


def trains_as_on_the_cpu(fused):
    losses, parameters = train("cpu", fused)
    npu_losses, npu_parameters = train("npu", fused)
    assert losses == npu_losses
    for name, value in parameters.items():
        assert torch.equal(value, npu_parameters[name]), name


# --- Where torch_npu takes other steps than the CPU ---


def assert_close(function, shapes):
    cpu, npu = operands(shapes, F32)
    for a, b in zip(results(function, cpu), results(function, npu), strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=1e-5, atol=1e-6)


@cases({
    # The gradient of a weight: torch_npu multiplies the transposes in the other order, which matters to the BLAS
    # where sizes are not multiples of its blocks.
    "linear without bias, odd sizes": (F.linear, [(2, 5, 7), (3, 7)]),
    # A mask of numbers keeps torch_npu from the fused operator. The CPU has no such limit.
    "attention with a bias": (
        lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, attn_mask=b.detach()), [*QKV, (8, 8)]
    ),
    # Results of torch_npu are contiguous where those of the CPU keep the strides of the operand.
    "attention in three dimensions": (F.scaled_dot_product_attention, [(4, 6, 8), (4, 9, 8), (4, 9, 8)]),
    "rms_norm of a transpose": (lambda x, w: F.rms_norm(x.mT, w.shape, w, 1e-6), [(3, 10, 4), (10,)]),
    "gradient of cholesky": (lambda x: torch.linalg.cholesky(definite(x)), [(3, 4, 4)]),
})  # fmt: skip
def test_other_steps_lead_to_nearly_the_same(function, shapes):
    assert_close(function, shapes)


@pytorchs_own_steps
def test_places_of_maxima_are_int32_by_own_steps():
    x = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    _, cpu = F.max_pool2d(x, 2, return_indices=True)
    _, npu = F.max_pool2d(x.npu(), 2, return_indices=True)
    assert npu.dtype == torch.int32 and torch.equal(cpu, npu.cpu().long())


# --- What is missing, and what a capture refuses ---


def test_a_data_dependent_size_is_refused_in_a_capture(code_of):
    x = torch.ones(4, device="npu")
    torch.npu.synchronize()
    graph = torch.npu.NPUGraph()
    with torch.npu.stream(torch.npu.Stream()):
        graph.capture_begin()
        try:
            assert 107027 in code_of(lambda: x[x > 0])
        finally:
            graph.capture_end()
    graph.reset()


def test_attention_with_a_position_shift_says_that_it_is_not_simulated():
    x = torch.randn(2, 4, 8, 16, device="npu")
    with pytest.raises(RuntimeError, match="position shift"):
        torch_npu.npu_fusion_attention(x, x, x, 4, "BNSD", pse=x @ x.mT)
        torch.npu.synchronize()
