"""Elementwise operators, copies, reductions, random numbers and optimizer steps on the simulated device.

Each result equals that of the CPU bit for bit, in every type and layout; NaN equals NaN.
"""

import functools

from ascend_sim import opinfo

import pytest
import torch

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
I64, I32, U8, BOOL = torch.int64, torch.int32, torch.uint8, torch.bool
FLOATS, NUMBERS, ALL = (F32, F16, BF16), (F32, F16, BF16, I64, I32), (F32, F16, BF16, I64, I32, U8, BOOL)

# A base tensor's shape, and the view of it that an operator gets.
LAYOUTS = {
    "contiguous": ((4, 6), lambda x: x),
    "transposed": ((6, 4), lambda x: x.t()),
    "sliced": ((8, 13), lambda x: x[::2, 1::2]),
    "expanded": ((1, 6), lambda x: x.expand(4, 6)),
    "0-d": ((), lambda x: x),
    "empty": ((0, 6), lambda x: x),
}


def values(dtype, shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype == BOOL:
        return torch.randint(2, shape, generator=generator).bool()
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=generator) * 2).to(dtype)
    return torch.randint(0 if dtype == U8 else -5, 9, shape, generator=generator).to(dtype)


def pair(dtype, layout, seed=0):
    """The same view of the same values on the CPU and on the device."""
    shape, view = LAYOUTS[layout]
    base = values(dtype, shape, seed)
    return view(base), view(base.npu())


def assert_same(expected, found):
    if isinstance(expected, (tuple, list)):
        assert len(expected) == len(found)
        for a, b in zip(expected, found, strict=True):
            assert_same(a, b)
        return
    assert found.device.type == "npu"
    found = found.cpu()
    assert (expected.dtype, expected.shape) == (found.dtype, found.shape)
    if expected.dtype.is_floating_point:
        nan = expected.isnan()
        assert torch.equal(nan, found.isnan())
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[expected.element_size()]
        expected, found = (x[~nan].contiguous().view(bits) for x in (expected, found))
    assert torch.equal(expected, found), (expected, found)


def run(function, dtype, layout, operands=1):
    inputs = [pair(dtype, layout, seed) for seed in range(operands)]
    assert_same(function(*(a for a, _ in inputs)), function(*(b for _, b in inputs)))


pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom", "ignore:.*internal format")
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


def cases(table):
    """(id, function, dtype) for each line of {dtypes: "names" or {name: function}}."""
    found = []
    for dtypes, entries in table:
        if isinstance(entries, str):
            entries = {name: getattr(torch, name) for name in entries.split()}
        for name, function in entries.items():
            found += [pytest.param(function, d, id=f"{name}-{str(d)[6:]}") for d in dtypes]
    return pytest.mark.parametrize("function, dtype", found)


UNARY = [
    (
        FLOATS,
        "acos acosh asin asinh atan atanh ceil cos cosh erf erfc erfinv exp exp2 expm1 floor frac log log10 log1p",
    ),
    (FLOATS, "log2 reciprocal round rsqrt sin sinc sinh sqrt tan trunc nan_to_num isposinf isneginf signbit"),
    (ALL, "logical_not isfinite isnan clone zeros_like ones_like"),
    (NUMBERS, "abs neg sign square"),
    ((I64, I32, U8, BOOL), "bitwise_not"),
    (
        NUMBERS,
        {
            "add number": lambda x: x + 3,
            "add scaled": lambda x: torch.add(x, 2, alpha=3),
            "number minus": lambda x: 7 - x,
            "mul number": lambda x: x * 3,
            "div number": lambda x: x / 3,
            "number div": lambda x: 2 / x,
            "floor_divide": lambda x: x // 2,
            "remainder": lambda x: x % 3,
            "compare": lambda x: (x > 1, x >= 1, x < 1, x <= 1, x == 1, x != 1),
            "clamp": lambda x: (x.clamp(-1, 2), x.clamp(min=0), x.clamp(max=1)),
            "pow": lambda x: (x**2, x**3),
            "fill": lambda x: (torch.full_like(x, 3), x.new_zeros(3), x.new_ones(2, 2)),
        },
    ),
    (FLOATS, {"pow real": lambda x: (x.abs() ** 0.5, x.abs() ** -1.5, 2**x, x.abs() ** 0.5)}),
    (FLOATS, {"round decimals": lambda x: torch.round(x, decimals=1), "fmod": lambda x: torch.fmod(x, 1.5)}),
]


@each_layout
@cases(UNARY)
def test_one_operand(function, dtype, layout):
    run(function, dtype, layout)


BINARY = [
    (NUMBERS, "add sub mul div eq ne lt le gt ge maximum minimum rsub"),
    (
        NUMBERS,  # integers are never divided by zero
        {
            "fmod": lambda a, b: torch.fmod(a, b * 2 + 1),
            "remainder": lambda a, b: a % (b * 2 + 1),
            "floor_divide": lambda a, b: a // (b * 2 + 1),
            "div trunc": lambda a, b: torch.div(a, b * 2 + 1, rounding_mode="trunc"),
        },
    ),
    (
        NUMBERS,
        {"add scaled": lambda a, b: torch.add(a, b, alpha=2), "sub scaled": lambda a, b: torch.sub(a, b, alpha=2)},
    ),
    (FLOATS, "atan2 logaddexp logaddexp2 xlogy isclose"),
    (FLOATS, {"pow": lambda a, b: a.abs() ** b, "lerp": lambda a, b: (torch.lerp(a, b, 0.3), torch.lerp(a, b, b))}),
    (ALL, "logical_and logical_or logical_xor"),
    ((I64, I32, U8, BOOL), "bitwise_and bitwise_or bitwise_xor"),
    ((I64, I32), "gcd"),
    (ALL, {"where": lambda a, b: torch.where(a > b, a, b), "masked_fill": lambda a, b: a.masked_fill(b > 0, 1)}),
    (FLOATS, {"clamp": lambda a, b: torch.clamp(a, min=b), "clamp both": lambda a, b: torch.clamp(a, b - 1, b + 1)}),
]


@each_layout
@cases(BINARY)
def test_two_operands(function, dtype, layout):
    run(function, dtype, layout, 2)


@pytest.mark.parametrize(
    "shapes", [((4, 6), (6,)), ((4, 1), (1, 6)), ((4, 6), ()), ((), (4, 6)), ((0, 6), (6,))], ids=str
)
@pytest.mark.parametrize("types", [(F32, F32), (F32, I64), (F16, F32), (BF16, F16), (I32, I64), (U8, BOOL)], ids=str)
@pytest.mark.parametrize("name", ["add", "mul", "div", "maximum", "gt", "where"])
def test_broadcasting_and_promotion(name, types, shapes):
    a, b = (values(d, s, seed) for seed, (d, s) in enumerate(zip(types, shapes, strict=True)))
    function = (lambda x, y: torch.where(x > y, x, y)) if name == "where" else getattr(torch, name)
    assert_same(function(a, b), function(a.npu(), b.npu()))


@each_layout
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_three_operands(dtype, layout):
    for function in (torch.addcmul, torch.addcdiv):
        run(functools.partial(function, value=0.5), dtype, layout, 3)


IN_PLACE = [
    (FLOATS, "exp_ log_ sqrt_ rsqrt_ sin_ floor_ reciprocal_ neg_"),
    (FLOATS, {"mixed": lambda x: x.add_(2).mul_(3).sub_(1).div_(7).clamp_(-1, 1).pow_(2).lerp_(x * 2, 0.5)}),
    (
        NUMBERS,
        {
            "tensor": lambda x: x.add_(x * 2, alpha=3).mul_(x),
            "compare": lambda x: x.gt_(1),
            "zero": lambda x: x.zero_(),
        },
    ),
    (
        ALL,
        {
            "fill": lambda x: x.fill_(1),
            "masked": lambda x: x.masked_fill_(x > 0, 0),
            "copy": lambda x: x.copy_(x.clone()),
        },
    ),
]


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced", "0-d", "empty"])
@cases(IN_PLACE)
def test_in_place(function, dtype, layout):
    run(lambda x: (function(x), x), dtype, layout)


@pytest.mark.parametrize("source", ALL, ids=str)
@pytest.mark.parametrize("target", ALL, ids=str)
def test_casts(source, target):
    for layout in LAYOUTS:
        cpu, npu = pair(source, layout)
        if target == U8 and source.is_floating_point:
            cpu, npu = cpu.abs(), npu.abs()  # a negative float has no uint8
        assert_same(cpu.to(target), npu.to(target))


REDUCTIONS = [
    (FLOATS, {"mean": lambda x: (x.mean(), x.mean(-1), x.mean(0, keepdim=True))}),
    (NUMBERS, {"sum": lambda x: (x.sum(), x.sum(-1), x.sum(0, keepdim=True), x.sum(dtype=F32))}),
    (NUMBERS, {"scan": lambda x: (x.cumsum(0), x.cumsum(-1), x.cumprod(-1))}),
    (FLOATS, {"nansum": lambda x: (torch.nansum(x), torch.nansum(x, -1)), "norm": lambda x: (x.norm(), x.norm(1, 0))}),
    (FLOATS, {"vector_norm": lambda x: [torch.linalg.vector_norm(x, o) for o in (0, 1, 2, 3.5)]}),
    (FLOATS, {"logsumexp": lambda x: (x.logsumexp(0), x.logsumexp(-1, keepdim=True))}),
    (ALL, {"all any": lambda x: (x.all(), x.any(), x.all(-1), x.any(0, keepdim=True)), "count": torch.count_nonzero}),
    (NUMBERS, {"prod": lambda x: (x.prod(), x.prod(-1), x.prod(0, keepdim=True))}),
]
EXTREMES = [
    (FLOATS, {"std": lambda x: (x.std(), x.std(-1), x.std(0, correction=0)), "var": lambda x: (x.var(), x.var(-1))}),
    (FLOATS, {"std and var with another correction": lambda x: (x.std(0, correction=2), x.var(-1, correction=3))}),
    (FLOATS, {"var_mean": lambda x: (*torch.var_mean(x, -1), *torch.std_mean(x, 0))}),
    (NUMBERS, {"max": lambda x: (x.max(), *x.max(-1), x.amax(0), x.argmax(), x.argmax(-1, keepdim=True))}),
    (NUMBERS, {"min": lambda x: (x.min(), *x.min(-1), x.amin(0), x.argmin(), x.argmin(-1, keepdim=True))}),
    (NUMBERS, {"cummax": lambda x: (*x.cummax(-1), *x.cummin(0)), "aminmax": lambda x: torch.aminmax(x)}),
    (
        FLOATS,
        {"vector_norm": lambda x: (torch.linalg.vector_norm(x, float("inf")), torch.linalg.vector_norm(x, -1.5, 0))},
    ),
    (FLOATS, {"median": lambda x: (x.median(), *x.median(-1), x.nanmedian())}),
    ((F32,), {"histc": lambda x: torch.histc(x, 5, -2, 2)}),
]


@each_layout
@cases(REDUCTIONS)
def test_reductions(function, dtype, layout):
    run(function, dtype, layout)


@pytest.mark.parametrize("layout", [k for k in LAYOUTS if k != "empty"])
@cases(EXTREMES)
def test_reductions_of_something(function, dtype, layout):
    run(function, dtype, layout)


def test_equal():
    a, b = torch.arange(4).npu(), torch.arange(4).npu()
    assert torch.equal(a, b) and not torch.equal(a, b + 1)
    assert torch.allclose(a.float(), b.float() + 1e-9)


MOVES = [
    (
        ALL,
        {
            "cat": lambda x: (torch.cat([x, x]), torch.cat([x, x[:1], x], 0), torch.cat([x, x], -1)),
            "stack": lambda x: (torch.stack([x, x]), torch.stack([x, x, x], -1)),
            "repeat": lambda x: (x.repeat(2, 3), x.repeat(2, 1, 1), torch.tile(x, (2,))),
            "repeat_interleave": lambda x: (x.repeat_interleave(2, 0), x.repeat_interleave(3)),
            "flip roll": lambda x: (x.flip(0), x.flip(0, 1), x.roll(2), x.roll((1, 2), (0, 1))),
            "contiguous": lambda x: (x.contiguous(), x.t().contiguous(), x.reshape(-1)),
            "split": lambda x: [y.contiguous() for y in (*x.split(2, 1), *x.chunk(3, 0))],
        },
    ),
    (FLOATS, {"triangles": lambda x: (x.tril(), x.triu(1), x.tril(-1))}),
    (FLOATS, {"pad": lambda x: torch.nn.functional.pad(x, (1, 2, 0, 3), value=7.0)}),
    (FLOATS, {"diagonal": lambda x: x.contiguous().fill_diagonal_(3.0)}),
]


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced", "expanded"])
@cases(MOVES)
def test_moves(function, dtype, layout):
    run(function, dtype, layout)


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.arange(7, device=d),
        lambda d: torch.arange(1, 8, 2, device=d),
        lambda d: torch.arange(0.5, 3, 0.25, device=d),
        lambda d: torch.linspace(-1, 2, 13, device=d),
        lambda d: torch.eye(3, 5, device=d),
        lambda d: torch.full((2, 3), 1.5, device=d),
        lambda d: torch.zeros(3, dtype=I64, device=d),
        lambda d: torch.ones(3, dtype=BF16, device=d),
        lambda d: torch.nn.functional.one_hot(torch.tensor([0, 2, 1], device=d), 4),
    ],
)
def test_made_from_nothing(make):
    assert_same(make("cpu"), make("npu"))


# Random numbers: not those of the CPU, nor of an Ascend. What holds is their distribution, and that they repeat.
WEIGHTS = torch.tensor([1.0, 3]).npu()
DRAWS = {
    "uniform": (lambda: torch.rand(20000, device="npu"), 0.5, 1 / 12),
    "uniform range": (lambda: torch.empty(20000, device="npu").uniform_(-1, 3), 1, 16 / 12),
    "normal": (lambda: torch.randn(20000, device="npu"), 0, 1),
    "normal moved": (lambda: torch.empty(20000, device="npu").normal_(3, 2), 3, 4),
    "integers": (lambda: torch.randint(10, (20000,), device="npu"), 4.5, 99 / 12),
    "bernoulli": (lambda: torch.empty(20000, device="npu").bernoulli_(0.3), 0.3, 0.21),
    "exponential": (lambda: torch.empty(20000, device="npu").exponential_(2), 0.5, 0.25),
    "multinomial": (lambda: torch.multinomial(WEIGHTS, 20000, True), 0.75, 3 / 16),
    "dropout": (lambda: torch.dropout(torch.ones(20000, device="npu"), 0.25, True), 1, 1 / 3),
    "permutation": (lambda: torch.randperm(20000, device="npu"), 9999.5, (20000**2 - 1) / 12),
    "half": (lambda: torch.rand(20000, device="npu", dtype=F16), 0.5, 1 / 12),
}
CAPTURED = [name for name in DRAWS if name not in ("bernoulli", "permutation")]  # torch_npu captures all but these


@pytest.mark.parametrize("name", DRAWS)
def test_distribution(name):
    draw, mean, variance = DRAWS[name]
    torch.manual_seed(0)
    first, second = draw().double().cpu(), draw().double().cpu()
    for x in (first, second):
        assert abs(x.mean().item() - mean) < 6 * (variance / x.numel()) ** 0.5
        assert abs(x.var().item() / variance - 1) < 0.1
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(draw().double().cpu(), first)


@pytest.mark.parametrize("name", CAPTURED)
def test_a_replay_draws_what_eager_draws(name):
    draw = DRAWS[name][0]
    draw()
    torch.npu.synchronize()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        captured = draw()
    drawn = []
    torch.manual_seed(7)
    for _ in range(3):
        graph.replay()
        drawn.append(captured.cpu())
    assert not torch.equal(drawn[0], drawn[1])
    torch.manual_seed(7)
    for x in drawn:
        assert torch.equal(draw().cpu(), x)


def test_range_of_random_numbers():
    x = torch.rand(100000, device="npu", dtype=BF16)
    assert x.min().item() >= 0 and x.max().item() < 1
    x = torch.randint(-3, 4, (10000,), device="npu")
    assert x.cpu().unique().tolist() == list(range(-3, 4))
    assert torch.randperm(50, device="npu").sort().values.tolist() == list(range(50))
    without = torch.multinomial(torch.ones(30, 8, device="npu"), 8)
    assert without.sort(-1).values.cpu().equal(torch.arange(8).expand(30, 8))
    never = torch.multinomial(torch.tensor([0.0, 1, 0, 1], device="npu"), 1000, True)
    assert never.cpu().unique().tolist() == [1, 3]


def test_multinomial_of_nothing_raises():
    with pytest.raises(RuntimeError):
        torch.multinomial(torch.zeros(3, device="npu"), 1).cpu()
    assert torch.ones(2, device="npu").sum().item() == 2  # and the device goes on


def test_a_dropout_mask_without_a_bit_for_each_element_is_refused(code_of):
    x = torch.ones(4, device="npu")
    assert 161002 in code_of(lambda: torch.ops.aten.native_dropout_backward(x, x > 0, 2.0))


def test_gradient_of_dropout():
    x = torch.randn(1000, device="npu", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.3)
    y.sum().backward()
    kept = y != 0
    assert torch.equal(x.grad[~kept], torch.zeros_like(x.grad[~kept]))
    assert torch.equal(y, x.detach() * x.grad)


def steps(device, make, count=4):
    torch.manual_seed(0)
    parameters = [torch.randn(s).to(device).requires_grad_() for s in ((5, 7), (7,), (1,))]
    optimizer = make(parameters)
    for step in range(count):
        optimizer.zero_grad()
        for i, p in enumerate(parameters):
            p.grad = (values(F32, tuple(p.shape), 10 * step + i)).to(device)
        optimizer.step()
    return [p.detach() for p in parameters]


OPTIMIZERS = {
    "SGD": lambda p, **k: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True, **k),
    "Adam": lambda p, **k: torch.optim.Adam(p, 1e-2, **k),
    "AdamW": lambda p, **k: torch.optim.AdamW(p, 1e-2, **k),
    "AdamW amsgrad": lambda p, **k: torch.optim.AdamW(p, 1e-2, amsgrad=True, **k),
    "Adagrad": lambda p, **k: torch.optim.Adagrad(p, 1e-2, **k),
    "RMSprop": lambda p, **k: torch.optim.RMSprop(p, 1e-2, momentum=0.9, **k),
    "Adamax": lambda p, **k: torch.optim.Adamax(p, 1e-2, **k),
}


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_steps(name, foreach):
    def make(parameters):
        return OPTIMIZERS[name](parameters, foreach=foreach)

    assert_same(steps("cpu", make), steps("npu", make))


@pytest.mark.parametrize("name", ["AdamW", "AdamW amsgrad"])
def test_fused_optimizer_steps(name):
    def make(parameters):
        return OPTIMIZERS[name](parameters, fused=True)

    assert_same(steps("cpu", make), steps("npu", make))


def test_gradient_scaling():
    for value, expected in ((2.0, 0.0), (float("inf"), 1.0)):
        grads = [torch.full((3,), value, device="npu"), torch.ones(2, device="npu")]
        found_inf, scale = torch.zeros(1, device="npu"), torch.full((1,), 0.5, device="npu")
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, scale)
        assert found_inf.item() == expected and grads[1].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "name",
    [
        "abs",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "neg",
        "reciprocal",
        "sin",
        "cos",
        "tanh",
        "sigmoid",
        "floor",
        "ceil",
        "round",
    ]
    + ["trunc", "frac", "sign", "erf", "log1p", "expm1"],
)
def test_lists_of_one_operand(name):
    inputs = [values(F32, s, i) for i, s in enumerate(((3, 4), (5,), (0,), ()))]
    function = getattr(torch, f"_foreach_{name}")
    assert_same(function(inputs), function([x.npu() for x in inputs]))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum", "pow"])
def test_lists_of_two_operands(name):
    a = [values(F32, s, i).abs() for i, s in enumerate(((3, 4), (5,), ()))]
    b = [values(F32, x.shape, 9) for x in a]
    function = getattr(torch, f"_foreach_{name}")
    for other in (b, 2.5, [1.5, 2, 3.5]):
        on_npu = [x.npu() for x in other] if other is b else other
        assert_same(function(a, other), function([x.npu() for x in a], on_npu))


def test_lists_of_three_operands():
    a, b, c = ([values(F32, s, seed) for s in ((3, 4), (5,), ())] for seed in range(3))
    on_npu = [[x.npu() for x in y] for y in (a, b, c)]
    for name in ("addcmul", "addcdiv"):
        function = getattr(torch, f"_foreach_{name}")
        for factor in (0.5, [0.5, 1.5, 2.0]):
            assert_same(function(a, b, c, factor), function(*on_npu, factor))
    for weight in (0.25, None):
        assert_same(torch._foreach_lerp(a, b, weight or c), torch._foreach_lerp(*on_npu[:2], weight or on_npu[2]))
    for order in (1, 2, float("inf")):
        assert_same(torch._foreach_norm(a, order), torch._foreach_norm(on_npu[0], order))


def test_report_of_a_fixed_part():
    """PyTorch's own samples for the operators used most; the rest is `python -m ascend_sim ops`."""
    pytest.importorskip("expecttest")
    found = opinfo.judge(quick=True)
    assert not found["wrong"], {name: found["why"][name] for name in found["wrong"]}
    assert len(found["right"]) >= 110, found["why"]
    assert {"nn.functional.dropout", "randn_like", "multinomial", "bernoulli"} <= set(found["random"])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8], ids=str)
def test_histogram_of_integers_which_the_cpu_does_not_have(dtype):
    x = torch.tensor([0, 3, 1, 1, 2, 3, 3], dtype=dtype)
    expected = torch.histc(x.double(), 4, 0, 3)
    assert torch.histc(x.npu(), 4, 0, 3).cpu().double().equal(expected)
