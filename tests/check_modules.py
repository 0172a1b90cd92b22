"""Small modules for the tests of helpers.check. Each of FAULTY has one known fault, and its line says of what kind:
``# fault: waits``. Each of CLEAN can be captured as it is.
"""

import itertools
import random
import time

import numpy
import torch
import torch_npu
from torch import nn
from torch.nn import functional as F

FAULTY, CLEAN = {}, {}
ROWS, WIDTH = 4, 16


def faulty(kind):
    FAULTY[kind.__name__] = kind
    return kind


def clean(kind):
    CLEAN[kind.__name__] = kind
    return kind


class Body(nn.Module):
    """Enough small kernels for a graph to be worth it."""

    notes: set = set()  # kinds of findings that a clean module has: notes

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

    def body(self, x):
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return x

    def forward(self, x):
        return self.body(x)

    @staticmethod
    def inputs():
        return (torch.randn(ROWS, WIDTH),)


# ---- the host waits


@faulty
class Item(Body):
    def forward(self, x):
        top = x.max().item()  # fault: waits
        return self.body(x / top)


@faulty
class Branch(Body):
    def forward(self, x):
        x = self.body(x)
        if x[0, 0] > 0:  # fault: waits
            x = x + 1
        return x


@faulty
class Loop(Body):
    def forward(self, x):
        x = self.body(x)
        while x.abs().max() > 1:  # fault: waits
            x = x / 2
        return x


@faulty
class Assertion(Body):
    def forward(self, x):
        assert torch.isfinite(x).all(), "not finite"  # fault: waits
        return self.body(x)


@faulty
class OnHost(Body):
    def forward(self, x):
        x = self.body(x)
        self.norm(x)
        return x

    def norm(self, x):
        return x.cpu().norm()  # fault: waits


@faulty
class ToList(Body):
    def forward(self, x):
        first = x.argmax(1).tolist()  # fault: waits
        return self.body(x) * len(first)


@faulty
class Printed(Body):
    def forward(self, x):
        repr(x)  # fault: waits
        return self.body(x)


@faulty
class Equal(Body):
    def forward(self, x):
        x = self.body(x)
        return x if torch.equal(x, x + 1) else x + 2  # fault: waits


@faulty
class MaskedAssignment(Body):
    def forward(self, x):
        x = self.body(x)
        x[x < 0] = 0  # fault: waits
        return x


@faulty
class OneHot(Body):
    def forward(self, x):
        return self.body(x) + F.one_hot(x.argmax(1)).sum()  # fault: waits


@faulty
class Synchronised(Body):
    def forward(self, x):
        x = self.body(x)
        torch.npu.synchronize()  # fault: waits
        return x + 1


@faulty
class FastPath(Body):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, batch_first=True).eval()

    def forward(self, x):
        x = self.encoder(x.unsqueeze(0)).squeeze(0)  # fault: fallback
        return self.body(x)


class ThreeWaits(Body):
    def forward(self, x):
        for layer in self.layers[:3]:
            x = layer(x) * float(x[0, 0])
        return self.body(x)


# ---- shapes of the data


@faulty
class Selected(Body):
    def forward(self, x):
        return self.body(x) + x[x > 0].mean()  # fault: shapes


@faulty
class PutBack(Body):
    """A where on the full shape would do."""

    def forward(self, x):
        x = self.body(x)
        x[x > 1] *= 0.5  # fault: shapes
        return x


@faulty
class Routed(Body):
    hopeless = "computes with tensors whose shape depends on the data"

    def forward(self, x):
        chosen = x[x[:, 0] > 0]  # fault: shapes
        return self.body(x).sum() + self.body(chosen).sum()


@faulty
class Ragged(Body):
    hopeless = "the shape of its output depends on the data"

    def forward(self, x):
        return self.body(x).masked_select(x > 0.5)  # fault: shapes


# ---- constants from the host


@faulty
class Constant(Body):
    def forward(self, x):
        return self.body(x) * torch.tensor(2.0, device=x.device)  # fault: constants


@faulty
class MaskFromHost(Body):
    def forward(self, x):
        mask = torch.ones(ROWS, WIDTH).tril().to(x.device)  # fault: constants
        return self.body(x) * mask


@faulty
class ListIndex(Body):
    def forward(self, x):
        return self.body(x)[:, [0, 2, 1]]  # fault: constants


# ---- frozen


@faulty
class StepCounter(Body):
    def __init__(self):
        super().__init__()
        self.step = 0

    def forward(self, x):
        self.step += 1  # fault: attribute
        return self.body(x) * self.step  # fault: number


COUNTER = itertools.count(1)
COUNTED = [0]


@faulty
class GlobalCounter(Body):
    def forward(self, x):
        return self.body(x) / next(COUNTER)  # fault: number


@faulty
class Clock(Body):
    def forward(self, x):
        return self.body(x) + time.perf_counter()  # fault: number


@faulty
class EveryOther(Body):
    def __init__(self):
        super().__init__()
        self.odd = False

    def forward(self, x):
        self.odd = not self.odd  # fault: attribute
        x = self.body(x)
        return x + 1 if self.odd else x - 1  # fault: path


@faulty
class History(Body):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x.shape[0])  # fault: attribute
        return self.body(x)


@faulty
class Growing(Body):
    def __init__(self):
        super().__init__()
        self.past = None

    def forward(self, x):
        self.past = x if self.past is None else torch.cat((self.past, x))  # fault: grows
        return self.body(x) + self.past.mean(0)


@faulty
class Recurrent(Body):
    def __init__(self):
        super().__init__()
        self.memory = torch.zeros(ROWS, WIDTH, device="npu")

    def forward(self, x):
        x = self.body(x + self.memory)
        self.memory = torch.tanh(x)  # fault: rebound
        return x


@faulty
class ReboundBuffer(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(WIDTH))

    def forward(self, x):
        self.total = self.total + x.mean(0)  # fault: rebound
        return self.body(x) + self.total


@faulty
class HostScalar(Body):
    """A tensor on the CPU is a number for an operator on the device."""

    def __init__(self):
        super().__init__()
        self.rate = [torch.tensor(1.0)]

    def forward(self, x):
        self.rate[0] = self.rate[0] * 0.5  # fault: rebound
        return self.body(x) * self.rate[0]  # fault: number


# ---- random numbers of the host


@faulty
class PythonNoise(Body):
    def forward(self, x):
        return self.body(x) + random.random()  # fault: host random


@faulty
class NumpyNoise(Body):
    def forward(self, x):
        return self.body(x) * float(numpy.random.rand())  # fault: host random


@faulty
class HostNoise(Body):
    def forward(self, x):
        noise = torch.randn(ROWS, WIDTH)  # fault: host random
        return self.body(x) + noise.to(x.device)  # fault: constants


# ---- side effects


@faulty
class BatchNorm(Body):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return self.body(self.norm(x))  # fault: buffers


@faulty
class RunningMean(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        self.mean.lerp_(x.mean(0), 0.1)  # fault: buffers
        return self.body(x - self.mean)


@faulty
class WritesInput(Body):
    def forward(self, x):
        x.clamp_(min=0)  # fault: writes input
        return self.body(x)


# ---- refused otherwise


@faulty
class Unjoined(Body):
    def forward(self, x):
        side = torch.npu.Stream()
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            y = x * 2  # fault: unjoined
        return self.body(x) + y


@faulty
class NoAclnn(Body):
    def forward(self, x):
        return self.body(torch_npu.npu_broadcast(x[:1], (ROWS, WIDTH)))  # fault: aclop


# ---- clean


@faulty
class AttentionThenDropout(Body):
    def forward(self, x):
        q = self.body(x).view(1, ROWS, 2, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, q, q, dropout_p=0.2)  # fault: masks
        return F.dropout(y, 0.2)


@faulty
class TwoAttentions(Body):
    def forward(self, x):
        q = self.body(x).view(1, ROWS, 2, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, q, q, dropout_p=0.2)  # fault: masks
        return F.scaled_dot_product_attention(y, y, y, dropout_p=0.2)


@clean
class Mlp(Body):
    pass


@clean
class ChosenOnDevice(Body):
    def forward(self, x):
        x = self.body(x)
        return torch.where(x.sum() > 0, x * 2, x - 1)


@clean
class MaskedMean(Body):
    def forward(self, x):
        seen = (x > 0).float()
        return self.body(x) + (x * seen).sum() / seen.sum().clamp(min=1)


@clean
class HeldConstant(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("order", torch.tensor([0, 2, 1]))

    def forward(self, x):
        return (self.body(x) * self.scale)[:, self.order]


@clean
class MadeOnce(Body):
    """The warm-up makes it, as it does in many published models."""

    def __init__(self):
        super().__init__()
        self.mask = None

    def forward(self, x):
        if self.mask is None or self.mask.shape != x.shape:
            self.mask = torch.ones(x.shape).tril().to(x.device)
        return self.body(x) * self.mask


@clean
class Attention(Body):
    def forward(self, x):
        q = self.body(x).view(1, ROWS, 2, -1).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(ROWS, WIDTH)


@clean
class BatchNormInEval(Body):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.eval()

    def forward(self, x):
        return self.body(self.norm(x))


@clean
class ImageNet(Body):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.norm = nn.GroupNorm(2, WIDTH)

    def forward(self, x):
        return self.body(self.norm(F.relu(self.conv(x))).mean((2, 3)))

    @staticmethod
    def inputs():
        return (torch.randn(ROWS, 1, 6, 6),)


@clean
class Words(Body):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(32, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, ids):
        return self.norm(self.body(self.embed(ids))).argmax(-1)

    @staticmethod
    def inputs():
        return (torch.randint(32, (ROWS, 6)),)


@clean
class Dropout(Body):
    notes = {"random"}

    def forward(self, x):
        return F.dropout(self.body(x), 0.2)


@clean
class DropoutInEval(Body):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.eval()

    def forward(self, x):
        return self.drop(self.body(x))


@clean
class DeviceNoise(Body):
    notes = {"random"}

    def forward(self, x):
        return self.body(x) + torch.rand_like(x)


@clean
class AttentionThenNoise(Body):
    """Its one mask is given back and not written again."""

    notes = {"random"}

    def forward(self, x):
        q = self.body(x).view(1, ROWS, 2, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, q, q, dropout_p=0.2)
        return y + torch.rand_like(y)


@clean
class DropoutThenAttention(Body):
    """The mask of a plain dropout is kept until a capture ends. Drawn in another order than in eager: other numbers."""

    notes = {"random"}
    statistics = True

    def forward(self, x):
        q = F.dropout(self.body(x), 0.2).view(1, ROWS, 2, -1).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.2)


@clean
class StaticCache(Body):
    """The position is an input: the same call again writes the same."""

    notes = {"written"}

    def __init__(self):
        super().__init__()
        self.register_buffer("past", torch.zeros(8, WIDTH))

    def forward(self, x, at):
        self.past.index_copy_(0, at, x)
        return self.body(x) + self.past.sum(0)

    @staticmethod
    def inputs():
        return torch.randn(ROWS, WIDTH), torch.arange(ROWS)


@clean
class LastKept(Body):
    notes = {"kept"}

    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        self.last = self.body(x)
        return self.last * 2


@clean
class ManyOutputs(Body):
    def forward(self, x):
        y = self.body(x)
        return {"mean": y.mean(), "all": (y, [y.amax(1)])}


@clean
class TreeOfInputs(Body):
    def forward(self, both, more):
        return self.body(both["x"] + both["y"]) * more[0]

    @staticmethod
    def inputs():
        return {"x": torch.randn(ROWS, WIDTH), "y": torch.randn(ROWS, WIDTH)}, [torch.randn(WIDTH), None]


@clean
class FixedRounds(Body):
    def forward(self, x):
        for _ in range(3):
            x = torch.where(x.abs().amax() > 1, x / 2, x)
        return self.body(x)


@clean
class Joined(Body):
    def forward(self, x):
        main, side = torch.npu.current_stream(), torch.npu.Stream()
        side.wait_stream(main)
        with torch.npu.stream(side):
            y = x * 2
        main.wait_stream(side)
        return self.body(x) + y


@clean
class Recurrence(Body):
    notes = {"recomputed"}  # the zeros at the start

    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.body(self.cell(x)[0])

    @staticmethod
    def inputs():
        return (torch.randn(2, 3, WIDTH),)


@clean
class Largest(Body):
    def forward(self, x):
        values, order = self.body(x).topk(4, dim=1)
        return torch.zeros_like(x).scatter(1, order, values)


@clean
class Lazy(Body):
    """Shape and dtype, and whether something is given, are no values of the device."""

    def forward(self, x, mask=None):
        x = x.float() / x.shape[-1] ** 0.5
        return self.body(x) if mask is None else self.body(x) * mask


# ---- factories, as the command takes them


def ready():
    return Mlp(), Mlp.inputs()


def with_fresh_inputs():
    print("made")
    return Words(), Words.inputs(), Words.inputs()


def not_ready():
    return Item(), Item.inputs()


def broken():
    raise ValueError("no such\nsize")


def that_exits():
    raise SystemExit(0)


def only_a_model():
    return Mlp()


def that_do_not_fit():
    return Mlp(), (torch.randn(ROWS, WIDTH + 1),)


def fresh_that_do_not_fit():
    return Mlp(), Mlp.inputs(), (torch.randn(ROWS + 1, WIDTH),)


def one_number_too_many():
    return Mlp(), (*Mlp.inputs(), 3)
