"""Checks of the exercises of notebook 10, *Train with graphs*."""

import warnings
from functools import partial

import ascend_sim

import torch
from torch import nn
from torch.nn import functional as F

from ..capture import capture
from .checking import Wrong, exercise

_WIDTH, _ROWS = 8, 4
_WHY = {
    "a": "a writes into memory that the graph reads",
    "b": "b gives the name x to another tensor, and the graph goes on reading the old one",
    "c": "c copies into the weights in place",
    "d": "d gives the optimizer new tensors, and the graph goes on with the old ones",
    "e": "e sets Python's p.grad to None, and a graph never asks Python: its backward pass makes its gradients anew",
    "f": "f writes into the tensor from which the graph reads the rate",
    "g": "g puts a number where Python looks, and the graph goes on reading the old tensor",
    "h": "h sets a flag that only Python reads: the dropout kernels were recorded",
    "i": "i sets the generator from which each replay draws its masks",
    "j": "j sets a flag that only autograd reads: the backward kernels were recorded",
}


def _net(*inner: nn.Module, seed: int = 0) -> nn.Sequential:
    """A small network with ``inner`` in its middle, on the NPU; the same weights for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(_WIDTH, _WIDTH), *inner, nn.GELU(), nn.Linear(_WIDTH, 2)).to("npu")


def _batches(count: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(_ROWS, _WIDTH, generator=draw).npu(), torch.randn(_ROWS, 2, generator=draw).npu())
        for _ in range(count)
    ]


def _adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-2, device="npu"), capturable=True)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _copied(state: dict) -> dict:
    return {name: value.clone() for name, value in state.items()}


def _same(state: dict, other: dict) -> bool:
    return all(torch.equal(value, other[name]) for name, value in state.items())


# ---- 1. which lines still count --------------------------------------------------------------------------------------


def _weights_after(line: str | None) -> dict:
    """The weights after two replays of a training step, with a line of the exercise between them."""
    model, (pair, other) = _net(nn.Dropout(0.5)), _batches(2)
    optimizer, earlier = _adam(model), _copied(model.state_dict())
    replay = capture(torch.enable_grad()(lambda x, y: _step(model, optimizer, x, y)), *pair)
    used = optimizer.state_dict()
    used["state"] = {number: _copied(state) for number, state in used["state"].items()}
    torch.npu.manual_seed(0)
    replay.graph.replay()
    group = optimizer.param_groups[0]
    if line == "a":
        replay.inputs[0].copy_(other[0])
    elif line == "c":
        model.load_state_dict(earlier)
    elif line == "d":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch_npu copies the rate by a deprecated storage
            optimizer.load_state_dict(used)
    elif line == "e":
        optimizer.zero_grad(set_to_none=True)
    elif line == "f":
        group["lr"].fill_(0.5)
    elif line == "g":
        group["lr"] = 0.5
    elif line == "h":
        model.eval()
    elif line == "i":
        torch.npu.manual_seed(1)
    elif line == "j":
        model[0].weight.requires_grad_(False)
    replay.graph.replay()
    return _copied(model.state_dict())


@exercise
def lines_that_count(answer) -> str:
    said = answer()
    if not isinstance(said, (set, frozenset, list, tuple)) or not set(said) <= set(_WHY):
        raise Wrong(f"the answer is a set of letters from a to j, such as {{'a', 'b'}}; yours is {said!r}")
    generator = torch.npu.get_rng_state()
    try:
        as_ever = _weights_after(None)
        right = {line for line in _WHY if not _same(_weights_after(line), as_ever)}
    finally:
        torch.npu.set_rng_state(generator)
    if wrong := set(said) - right:
        first = min(wrong)  # of several the first: all of them would be the solution
        raise Wrong(f"the weights are the same with and without {first}. {_WHY[first]}")
    if missing := right - set(said):
        raise Wrong(
            f"all of yours count, and {len(missing)} more {'does' if len(missing) == 1 else 'do'}: "
            "which other lines write into memory that a replay reads?"
        )
    because = "; ".join(_WHY[line] for line in sorted(right))
    return f"{because}. The others change only what Python looks at, and a replay does not go through Python"


# ---- 2. accumulate over micro-batches --------------------------------------------------------------------------------


def _mean_gradient_step(model, optimizer, loss_fn, micro_batches, only_last=False, divide=True) -> None:
    """The eager step. only_last: what it becomes where each gradient is the static buffer, n times that of the last."""
    optimizer.zero_grad(set_to_none=True)
    for x, y in micro_batches[-1:] * len(micro_batches) if only_last else micro_batches:
        (loss_fn(model(x), y) / (len(micro_batches) if divide else 1)).backward()
    optimizer.step()


def _accumulated(step, sizes: tuple[int, ...], graphed: bool = False) -> tuple[list[dict], int, int]:
    """Weights after a step on each number of micro-batches, how often the model was called, and how many losses waited
    for their backward pass at once, at most.
    """
    model, calls, waiting, most = _net(), [], 0, 0

    def loss_fn(output, target):
        nonlocal waiting, most
        loss = F.mse_loss(output, target)
        waiting += 1
        most = max(most, waiting)
        loss.register_hook(began)
        return loss

    def began(_):
        nonlocal waiting
        waiting -= 1

    start = _copied(model.state_dict())
    if graphed:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warms up on one stream and captures on another: autograd notices
            torch.npu.make_graphed_callables(model, (_batches(1, seed=9)[0][0],))
    model.register_forward_hook(lambda *_: calls.append(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = [start]
    for seed, size in enumerate(sizes):
        step(model, optimizer, loss_fn, _batches(size, seed))
        weights.append(_copied(model.state_dict()))
    return weights, len(calls), most


def _near(state: dict, other: dict) -> bool:
    """Equal but for the order in which gradients were added."""
    return all(torch.allclose(value, other[name], rtol=1e-5, atol=1e-6) for name, value in state.items())


@exercise
def accumulate(answer) -> str:
    sizes = (2, 1, 4, 2)
    expected, mistaken, undivided = (
        _accumulated(partial(_mean_gradient_step, **slip), sizes)[0]
        for slip in ({}, dict(only_last=True), dict(divide=False))
    )
    found, calls, most = _accumulated(answer, sizes, graphed=True)
    if _same(found[0], found[1]):
        raise Wrong("no weight has changed after the first call: is there a gradient when the optimizer steps?")
    for call, size in enumerate(sizes, 1):
        if _near(found[call], expected[call]):
            continue
        if _near(found[call], mistaken[call]):
            raise Wrong(
                f"with {size} micro-batches the gradient is {size} times that of the last one: p.grad is the graph's "
                "own buffer, and the next backward pass overwrites it before it adds it"
            )
        if most > 1:
            raise Wrong(
                "graphed is called several times before its backward pass, and that one reads what the last call left "
                "in static memory: a backward pass after each call"
            )
        if _near(found[call], undivided[call]):
            raise Wrong("the weights are those of the sum of the gradients: divide by the number of micro-batches")
        which = "in the first call" if call == 1 else f"in call {call}, and right before"
        several = f"{size} micro-batches" if size > 1 else "one micro-batch"
        raise Wrong(f"with {several} the weights are wrong {which}: what is in p.grad when it begins?")
    if calls != sum(sizes):
        raise Wrong(f"graphed was called {calls} times for {sum(sizes)} micro-batches: each is one replay")
    exact = "equal to eager in every bit" if _same(found[-1], expected[-1]) else "equal to eager but for rounding"
    return f"{len(sizes)} steps on {', '.join(map(str, sizes))} micro-batches, weights {exact}"


# ---- 3. leave no trace of the warm-up --------------------------------------------------------------------------------


def _prepared(trained: int, *inner: nn.Module) -> tuple[nn.Sequential, torch.optim.Adam]:
    """A model and its optimizer after ``trained`` eager steps."""
    model = _net(*inner)
    optimizer = _adam(model)
    for batch in _batches(trained, seed=7):
        _step(model, optimizer, *batch)
    return model, optimizer


@exercise
def warmed_up(answer) -> str:
    for trained in (0, 2):
        which = f"a model that was trained for {trained} steps before" if trained else "a new model"
        model, optimizer = _prepared(trained, nn.BatchNorm1d(_WIDTH))
        batch, streams, here = _batches(1)[0], [], torch.npu.current_stream()
        before = _copied(model.state_dict())
        state_before = {p: _copied(state) for p, state in optimizer.state.items()}
        modes, rate = [module.training for module in model.modules()], float(optimizer.param_groups[0]["lr"])

        def step(model=model, optimizer=optimizer, batch=batch, streams=streams):
            streams.append(torch.npu.current_stream())
            _step(model, optimizer, *batch)

        answer(model, optimizer, step)
        if not streams:
            raise Wrong("step() was not called: then the capture makes the optimizer's state, in every replay anew")
        if here in streams:
            raise Wrong("step() ran on the stream of the caller: warm up on a side stream, as a capture has one, too")
        if len(streams) != 3:
            raise Wrong(f"the exercise asks for three calls of step(), and yours makes {len(streams)}")
        if torch.npu.current_stream() != here:
            raise Wrong("the side stream is still the current one afterwards: with torch.npu.stream(side) leaves it")
        if [module.training for module in model.modules()] != modes:
            raise Wrong("afterwards the model is in another mode: leave train() and eval() as they were")
        if float(optimizer.param_groups[0]["lr"]) != rate:
            raise Wrong("the optimizer's rate is not what it was: a warm-up changes weights and state, and no rate")
        if not optimizer.state:
            raise Wrong(
                f"with {which} the optimizer has no state afterwards: the capture would record how it is made, and "
                "every replay would begin with zeros. Keep the tensors, and write into them"
            )
        parameters = dict(model.named_parameters())
        for name, value in model.state_dict().items():
            if not torch.equal(value, before[name]):
                what = (
                    "is it saved as a copy? state_dict() and parameters() give the tensors themselves"
                    if name in parameters
                    else "it is a buffer, which parameters() does not give you"
                )
                raise Wrong(f"with {which} {name} is not what it was: {what}")
        for p, state in optimizer.state.items():
            for name, value in state.items():
                want = state_before[p][name] if trained else torch.zeros_like(value)
                if not torch.equal(value, want):
                    should = "what it was before the warm-up" if trained else "zero, as nothing was trained yet"
                    raise Wrong(f"with {which} the optimizer's state {name!r} should be {should}, and is not")
    return "weights, running statistics and Adam's averages are as before, for a new model and for a trained one"


# ---- 4. a captured step ----------------------------------------------------------------------------------------------


@exercise
def captured_step(answer) -> str:
    launches, eager = [_train_captured(answer, trained) for trained in (0, 2)][-1]
    return f"losses and weights are equal to eager, by {launches} launches a step where eager has {eager}"


def _train_captured(answer, trained: int) -> tuple[int, int]:
    """Train both ways, after ``trained`` eager steps. Returns the launches of a captured step, and of an eager one."""
    which = f"with a model that was trained for {trained} steps before, " if trained else ""
    (model, optimizer), (expected, eager) = (_prepared(trained, nn.BatchNorm1d(_WIDTH)) for _ in range(2))
    batches, half = _batches(8), 4
    example = _batches(1, seed=8)[0]
    kept = [x.clone() for x in (*example, *sum(batches, ()))]
    step = answer(model, optimizer, F.mse_loss, *example)
    if not callable(step):
        raise Wrong(f"return a function step(x, y); yours is {type(step).__name__}")
    losses, right = [], []
    for at, batch in enumerate(batches):
        if at == half:
            for group in (optimizer.param_groups[0], eager.param_groups[0]):
                if not isinstance(group["lr"], torch.Tensor):
                    raise Wrong("the optimizer's rate is no tensor any more: leave the caller's optimizer as it is")
                group["lr"].fill_(1e-3)
        with ascend_sim.trace() as spans:
            losses.append(step(*batch))
        with ascend_sim.trace() as eager_spans:
            right.append(_step(expected, eager, *batch).item())
    if not all(isinstance(loss, torch.Tensor) and loss.numel() == 1 for loss in losses):
        raise Wrong(f"step(x, y) returns the loss, a tensor with one element; yours gave {type(losses[0]).__name__}")
    if not all(map(torch.equal, kept, (*example, *sum(batches, ())))):
        raise Wrong("an input has changed: copy each batch into tensors of your own, and leave the caller's alone")
    _look_at_losses([loss.item() for loss in losses], right, half, which)
    for name, value in model.state_dict().items():
        if not torch.equal(value, expected.state_dict()[name]):
            raise Wrong(f"{which}all losses are right, but {name} is not: what did the warm-up leave there?")
    launches, many = (len({span.enqueued for span in found}) for found in (spans, eager_spans))
    if launches > 8:
        raise Wrong(f"the results are right, but a step is {launches} launches (eager: {many}): replay all of it")
    return launches, many


def _look_at_losses(losses: list[float], right: list[float], half: int, which: str) -> None:
    if losses == right:
        return
    if len(set(losses)) == 1:
        raise Wrong(f"{which}all losses are the same: a static output, or a step that reads only the example")
    at = next(i for i, (loss, want) in enumerate(zip(losses, right, strict=True)) if loss != want)
    if at == 0:
        raise Wrong(f"{which}the first loss is wrong already: were the warm-up's steps taken back?")
    if at > half:
        raise Wrong(f"{which}the losses are right until the rate changes: the graph must read it from the tensor")
    raise Wrong(
        f"{which}the losses are wrong from step {at + 1} on: is each weight trained, and did the optimizer's state "
        "begin as it was, made before the capture?"
    )
