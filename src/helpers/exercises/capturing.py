"""Checks of the exercises of notebook 3, *Capture and replay*."""

import gc

import torch

from .. import models
from ..capture import capture
from .checking import Wrong, draw, exercise, replayed


class _Counted:
    """A function that knows how often Python went through it (``calls``; a replay does not), and with which sizes.

    The device counts how often it ran there (``runs``): a replay does.
    """

    def __init__(self, function):
        self.function, self.calls, self.sizes = function, 0, set()
        self.runs = torch.zeros((), device="npu")

    def __call__(self, *inputs):
        self.calls += 1
        self.runs.add_(1)
        self.sizes.add(len(inputs[0]))
        return self.function(*inputs)


@exercise
def capture_safely(answer) -> str:
    function = _Counted(lambda x: (x * 3).sum(-1))
    example = draw(3, 4, seed=0).npu()
    inputs = [draw(3, 4, seed=1), draw(3, 4, seed=2).npu()]
    before, expected = example.clone(), [function(x.npu()) for x in inputs]
    call = answer(function, example)
    if not callable(call):
        raise Wrong(f"return a function that replays; yours is a {type(call).__name__}")
    if function.calls == len(inputs):
        raise Wrong("nothing was captured: your code never called the function")
    kept, at_once = [], []
    for x in inputs:
        kept.append(replayed(function, call, x))
        if not isinstance(kept[-1], torch.Tensor) or kept[-1].shape != expected[0].shape:
            raise Wrong("your function returns something else than the captured one: its output, of shape [3]")
        at_once.append(kept[-1].clone())
    for y, want in zip(at_once, expected, strict=True):
        if not torch.equal(y.cpu(), want.cpu()):
            raise Wrong(
                "the answer is not that to the new input: the graph reads the address that it saw, so copy_ the new "
                "input to there, and then replay"
            )
    if not torch.equal(kept[0].cpu(), expected[0].cpu()):
        raise Wrong("the second call changed what the first one returned: each replay overwrites the output, so clone")
    if not torch.equal(example, before):
        raise Wrong("a call overwrites the example, which is its owner's: make the static input a copy of it")
    for what, x in {
        "shape [1, 4] instead of [3, 4]": draw(1, 4, seed=3),
        "shape [2, 4] instead of [3, 4]": draw(2, 4, seed=3),
        "dtype int64 instead of float32": torch.ones(3, 4, dtype=torch.int64),
    }.items():
        try:
            call(x)
        except ValueError:
            continue
        except Exception as error:
            raise Wrong(
                f"an input of {what} raises {type(error).__name__}, and not a ValueError of your own: compare shape "
                "and dtype before you copy anything"
            ) from None
        raise Wrong(f"an input of {what} is taken: copy_ broadcasts and converts, without a word. Compare before it")
    if not torch.equal(call(inputs[0]).cpu(), expected[0].cpu()):
        raise Wrong("after an input that was refused the answers are wrong: compare before you copy anything")
    return "fresh inputs, kept outputs, and wrong inputs refused: what helpers.capture gives, called with clone=True"


def _reserved() -> int:
    """Bytes that torch_npu keeps."""
    gc.collect()
    torch.npu.empty_cache()
    return torch.npu.memory_reserved()


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _kept_by(make, batches) -> int:
    """Bytes that the graphs of ``make`` for these batch sizes keep."""
    empty = _reserved()
    graphs = make(batches)
    kept = _reserved() - empty
    del graphs
    return kept


@exercise
def capture_batches(answer) -> str:
    batches = 768, 1536, 1024  # in no order. From 10 MiB on, torch_npu gives a tensor a block of its own: here 12 to 24
    offset = draw(4096, seed=0).npu()
    function = _Counted(lambda x: (x + offset).relu().sum(-1))

    def in_order(order, pool):
        return [capture(function, torch.zeros(n, 1), warmup=1, pool=pool()) for n in order]

    def shared():
        handle = torch.npu.graph_pool_handle()
        return lambda: handle

    largest_first = sorted(batches, reverse=True)
    least = _kept_by(lambda order: in_order(order, shared()), largest_first)
    smallest_first = _kept_by(lambda order: in_order(order, shared()), sorted(batches))
    apart = _kept_by(lambda order: in_order(order, lambda: None), batches)

    empty, calls = _reserved(), function.calls
    function.sizes.clear()
    graphs = answer(function, [torch.zeros(n, 1) for n in batches])
    kept = _reserved() - empty
    if not isinstance(graphs, dict) or set(graphs) != set(batches):
        raise Wrong("return a dict from each batch size, which is the first dimension of an example, to its graph")
    if function.calls == calls:
        raise Wrong("nothing was captured: your code never called the function")
    if missing := set(batches) - function.sizes:
        raise Wrong(f"no graph of batch {max(missing)}: a padded one computes rows that nobody asked for")
    for n in batches:
        x = draw(n, 1, seed=n)
        y = replayed(function, graphs[n], x, name=f"batch {n}: a call").clone()
        if not torch.equal(y, function.function(x.npu())):
            raise Wrong(f"batch {n}: the answer is not that of the function on the new input")
    if kept > least + (smallest_first - least) // 4:
        if kept > (smallest_first + apart) // 2:
            why = "as much as with a pool for each. Give all captures the same torch.npu.graph_pool_handle()"
        else:
            why = "the pool is shared, but a graph cannot use the blocks of a smaller one. Which one goes first?"
        raise Wrong(f"your graphs keep {_mib(kept)}, and {_mib(least)} are enough: {why}")
    return (
        f"{_mib(kept)} for {len(batches)} graphs, the largest first; {_mib(smallest_first)} with the smallest first, "
        f"{_mib(apart)} with a pool for each"
    )


@exercise
def unroll(answer) -> str:
    model = models.genmol(32, 1, vocab=64).to("npu")
    step = _Counted(models.sampling_step(model))
    steps, batch, tokens = 4, 2, 12
    ids, mask = (x.npu() for x in models.masked_rows([10, 7], tokens))

    def noise(seed: int) -> list[torch.Tensor]:
        """expo, gumbel and keep of all steps, each with the steps first."""
        generator = torch.Generator().manual_seed(seed)
        drawn = [models.draw_noise(batch, tokens, 64, generator) for _ in range(steps)]
        keep = torch.tensor([[0.9], [0.6], [0.3], [0.0]])
        return [x.npu() for x in (*map(torch.stack, zip(*drawn, strict=True)), keep)]

    def single(of, feed=True, own=True) -> torch.Tensor:
        """The steps one by one. feed, own: whether a step gets the ids of the step before, and noise of its own."""
        now = ids
        for i in range(steps):
            now = step.function(now if feed else ids, mask, *(x[i if own else 0] for x in of))
        return now

    captured_noise, fresh = noise(0), noise(1)
    with torch.no_grad():
        expected = single(fresh)
        before = ids.clone()
        function = answer(step)
        if not callable(function):
            raise Wrong(f"return a function of ids, mask, expo, gumbel and keep; yours is a {type(function).__name__}")
        calls = step.calls
        result = function(ids, mask, *fresh)
        if not isinstance(result, torch.Tensor) or result.shape != ids.shape:
            raise Wrong(f"return the ids after the last step, of shape {list(ids.shape)}, and not those of all steps")
        if not torch.equal(ids, before):
            raise Wrong("your function overwrites ids: give the result of one step to the next under a name of its own")
        if step.calls - calls != steps:
            raise Wrong(f"expo has {steps} steps in its first dimension, and your function made {step.calls - calls}")
        for said, slip in {
            "each step begins at the first ids: the output of one step is the input of the next": dict(feed=False),
            "each step gets the noise of the first: step i takes expo[i], gumbel[i] and keep[i]": dict(own=False),
        }.items():
            if torch.equal(result, single(fresh, **slip)):
                raise Wrong(said)
        if not torch.equal(result, expected):
            raise Wrong("the tokens are not those of four single steps: give each step ids, mask and its own noise")
        calls = step.calls
        function(ids, mask, *(x[: steps - 1] for x in fresh))
        if step.calls - calls != steps - 1:
            raise Wrong(f"with three steps of noise your function makes {step.calls - calls} steps: it is len(expo)")
        captured = capture(function, ids, mask, *captured_noise)
        calls = step.calls
        result = captured(ids, mask, *fresh)
        if step.calls != calls or not torch.equal(result, expected):
            raise Wrong("one replay does not give the tokens of four single steps")
    return "one replay gives the tokens of four single steps, bit for bit, and the host launches one graph and not four"
