"""Checks of the exercises of notebook 4, *Avoid the pitfalls*."""

import torch

from ..capture import capture
from ..waits import ReadBacks
from .checking import Wrong, draw, exercise, replayed


class _Model(torch.nn.Module):
    """y = x * factor + 1. The factor is made on the device by the first call, if it is lazy.

    calls: how often Python went through it. runs: how often the device did, a replay too.
    """

    def __init__(self, factor: float, lazy: str = ""):
        super().__init__()
        self.factor, self.lazy, self.calls = factor, lazy, 0
        self.runs = torch.zeros((), device="npu")
        self.on_device = None if lazy else torch.tensor(factor, device="npu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.runs.add_(1)
        if self.on_device is None:
            if self.lazy == "copied":
                self.on_device = torch.tensor(self.factor, device=x.device)
            else:
                self.on_device = torch.full((), self.factor, device=x.device)
        return x * self.on_device + 1

    def right(self, x: torch.Tensor) -> torch.Tensor:
        """What it computes, on the CPU, without a call of it."""
        return x.cpu() * torch.tensor(self.factor) + 1


def _predicts(predict, model: _Model, old: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """The answer to a batch. Raises Wrong if it is another one's, or not a replay's. old: the answer to the example."""
    y = replayed(model, predict, batch, name="predict")
    if not isinstance(y, torch.Tensor) or y.shape != batch.shape:
        raise Wrong(f"predict returns a tensor of the shape of its batch, here {list(batch.shape)}")
    if torch.equal(y.cpu(), old):
        raise Wrong(
            "the answer to every batch is that to the example: `x = ...` only moves the name, and the graph reads the "
            "address that it saw"
        )
    if not torch.equal(y.cpu(), model.right(batch)):
        raise Wrong(
            "the answer is neither that to the batch nor that to the example: nobody holds the static input any more, "
            "so its memory was given to another tensor, and the graph reads that one"
        )
    return y


@exercise
def make_predictor(answer) -> str:
    batches = [draw(3, 4, seed=1), draw(3, 4, seed=2).npu()]

    def tried(model: _Model, example: torch.Tensor):
        old = model.right(example)
        predict = answer(model, example)
        if not callable(predict):
            raise Wrong(f"return the function predict; yours is a {type(predict).__name__}")
        if not model.calls:
            raise Wrong("nothing was captured: your code never called the model")
        taken = [torch.full((3, 4), 77.0, device="npu") for _ in range(8)]  # whatever memory is free by now
        outputs = [_predicts(predict, model, old, batch) for batch in batches]
        del taken
        if not torch.equal(outputs[0].cpu(), model.right(batches[0])):
            raise Wrong(
                "the second call of predict changed what the first one returned: every replay writes to one address, "
                "so return a clone"
            )

    example = draw(3, 4, seed=0).npu()
    before = example.clone()
    tried(_Model(2.5), example)
    if not torch.equal(example, before):
        raise Wrong("predict overwrites the example, its owner's: `.npu()` of a tensor on the device is that tensor")
    tried(_Model(3.5), example.cpu())

    try:
        tried(_Model(1.25, lazy="copied"), before)
    except RuntimeError as error:
        raise Wrong(
            "with a model that makes a constant on its first call, the capture is refused, because that call copies "
            "from the host. Let the first call not be the captured one"
        ) from error
    model = _Model(1.75, lazy="filled")
    answer(model, before)
    if not torch.equal(model.right(before), model(before).cpu()):
        raise Wrong(
            "a model that fills its constant on its first call is spoilt: the fill was recorded and did not run, so "
            "eager calls read memory that nobody wrote. Let the first call not be the captured one"
        )
    return "fresh batches, kept results, an example that stays its owner's, and models with a first call of their own"


@exercise
def make_sampler(answer) -> str:
    shape = 64, 64
    model, example = _Model(2.0), draw(*shape, seed=0).npu()
    before = example.clone()
    sample = answer(model, example)
    taken = [torch.full((), 7.0, device="npu") for _ in range(64)]  # whatever memory is free by now
    if not callable(sample):
        raise Wrong(f"return the function sample; yours is a {type(sample).__name__}")
    x = draw(*shape, seed=1).npu()
    y = replayed(model, sample, x, 0.0, name="sample")
    if not isinstance(y, torch.Tensor) or y.shape != x.shape:
        raise Wrong(f"sample returns a tensor of the shape of its input, here {list(shape)}")
    del taken
    if not torch.equal(y.cpu(), model.right(x)):
        raise Wrong(
            "at temperature 0 the noise is still there: a Python number is written into the graph, so a new one does "
            "not reach it, and neither does a new tensor of that name. Hold the temperature in one, and fill_ that"
        )
    zero = torch.full(shape, -0.5, device="npu")  # model(zero) is 0, so that what is left is the noise
    kept = y.clone()
    replayed(model, sample, zero, 1.0, name="sample")
    if not torch.equal(y, kept):
        raise Wrong("the second call of sample changed what the first one returned: return a clone")
    if not torch.equal(example, before):
        raise Wrong("sample overwrites the example, which is its owner's: make the static input a copy of it")

    def noise(temperature: float, seed: int | None = None) -> torch.Tensor:
        if seed is not None:
            torch.manual_seed(seed)
        return sample(zero, temperature).cpu()

    with torch.random.fork_rng([torch.npu.current_device()], device_type="npu"):
        first, second = noise(1.0, seed=3), noise(1.0)
        again, doubled = noise(1.0, seed=3), noise(2.0, seed=3)
    if torch.equal(first, second):
        raise Wrong(
            "two calls give the same noise: what Python draws is frozen, and torch.normal(0., 1., size) records "
            "nothing in a capture. torch.randn_like draws on the device at each replay"
        )
    if first.min() == first.max():
        raise Wrong("all elements get the same number: the noise has the shape of the output")
    if not torch.equal(first, again):
        raise Wrong("the same torch.manual_seed gives other noise: draw with torch's own generators")
    if not torch.equal(doubled, 2 * first):
        raise Wrong("at temperature 2 the noise is not twice that at 1, from the same seed")
    if abs(first.mean()) > 0.1 or abs(first.std() - 1) > 0.1:
        raise Wrong(f"normal noise has mean 0 and deviation 1; yours has {first.mean():.2f} and {first.std():.2f}")
    return "the temperature is read at each replay, the noise is new each time, and the same seed repeats it"


def _captured(answer, example: torch.Tensor, *rest):
    """The learner's function, captured. Raises Wrong if it changes its input, and what a refused capture raises."""
    x = example.npu()
    before = x.clone()
    answer(x, *rest)
    if not torch.equal(x, before):
        raise Wrong("your function changes its input, the static one: the next replay begins with what is left of it")
    return capture(lambda x: answer(x, *rest), x)


def _searched(scores: list[float], rounds: int) -> list[int]:
    """Greedy search with Python's while."""
    scores, taken = list(scores), []
    while len(taken) < rounds and max(scores) > 0.5:
        best = scores.index(max(scores))
        taken.append(best)
        scores[best] = 0.0
    return taken + [-1] * (rounds - len(taken))


@exercise
def greedy_search(answer) -> str:
    cases = {
        "three of six above 0.5": [0.1, 0.9, 0.3, 0.7, 0.8, 0.2],
        "all above 0.5, so more than there are rounds": [0.6, 0.9, 0.8, 0.7, 0.95, 0.75],
        "none above 0.5": [0.4, 0.1, 0.2, 0.3, 0.0, 0.45],
        "one at exactly 0.5, which is not above": [0.5, 0.1, 0.6, 0.3, 0.2, 0.4],
        "scores below 0": [-1.0, -0.2, 0.7, -0.6, -3.0, -0.1],
    }
    example, *_ = cases.values()
    for rounds in (4, 2):
        captured = _captured(answer, torch.tensor(example), rounds)
        for case, scores in cases.items():
            taken, right = captured(torch.tensor(scores)), _searched(scores, rounds)
            if not isinstance(taken, torch.Tensor) or taken.shape != (rounds,):
                raise Wrong(f"return a tensor of {rounds} places, one a round: a graph has one shape whatever it finds")
            if taken.is_floating_point():
                raise Wrong("the places are whole numbers: return them in an integer tensor")
            if taken.tolist() != right:
                raise Wrong(f"{case}: {scores} in {rounds} rounds gives {right}, and your replay {taken.tolist()}")
    return "no value left the device: every round runs, and decides there whether it still counts"


# By the sign of the sum: what a branch computes, inputs that take it, and how to say so.
_BRANCHES = {1: lambda x: x * 2, -1: lambda x: x - 1, 0: lambda x: x}
_SIGNED = {
    1: [torch.tensor([1.0, 2.0, -0.5]), torch.tensor([0.25, 0.5, 0.0])],
    -1: [torch.tensor([-1.0, 0.5, -2.0]), torch.tensor([0.0, -0.25, 0.0])],
    0: [torch.tensor([1.0, -1.0, 0.0]), torch.tensor([2.0, -0.5, -1.5])],
}
_SAID = {1: "above 0", -1: "below 0", 0: "exactly 0"}


@exercise
def three_branches(answer) -> str:
    captured = _captured(answer, _SIGNED[1][0])
    for sign, inputs in _SIGNED.items():
        for x in inputs:
            y, right = captured(x), _BRANCHES[sign](x)
            if not isinstance(y, torch.Tensor) or y.shape != x.shape:
                raise Wrong(f"the result has the shape of the input, {list(x.shape)}: all elements take one branch")
            if not torch.equal(y.cpu(), right):
                raise Wrong(
                    f"the sum of {x.tolist()} is {_SAID[sign]}, so it gives {right.tolist()}, and your replay "
                    f"{y.tolist()}"
                )
    return "one graph holds all branches and computes them at each replay, and the host waits for nothing"


@exercise
def graph_for_each_branch(answer) -> str:
    calls = dict.fromkeys(_BRANCHES, 0)
    runs = {sign: torch.zeros((), device="npu") for sign in _BRANCHES}  # counted by the device, so replays too

    def counted(sign: int):
        def branch(x):
            calls[sign] += 1
            runs[sign].add_(1)
            return _BRANCHES[sign](x) * 1  # the branch of 0 would give the input itself

        return branch

    example = _SIGNED[1][0].npu()
    step = answer({sign: counted(sign) for sign in _BRANCHES}, example)
    if not callable(step):
        raise Wrong(f"return a function of x; yours is a {type(step).__name__}")
    if missing := [sign for sign in calls if not calls[sign]]:
        raise Wrong(f"the branch of the sign {missing[0]} was not captured: capture all of them before the first call")
    made = dict(calls)
    for i in range(2):  # each branch again, after the others
        for sign, inputs in _SIGNED.items():
            x = inputs[i].npu()
            before = sum(runs.values()).item()
            with ReadBacks() as reads:
                y = step(x)
            if calls != made:
                raise Wrong("a call goes through a branch in Python again: it should pick a graph and replay it")
            if not isinstance(y, torch.Tensor) or not torch.equal(y, _BRANCHES[sign](x)):
                raise Wrong(f"the sum of {x.tolist()} is {_SAID[sign]}, and that is not the branch that your step took")
            ran = sum(runs.values()).item() - before
            if ran != 1:
                raise Wrong(f"one call replays {ran:.0f} branches: let Python look at the sign first, and replay one")
    if not torch.equal(example.cpu(), _SIGNED[1][0]):
        raise Wrong("a call overwrites the example, which is its owner's: make each static input a copy of it")
    times = "once" if reads.count == 1 else f"{reads.count} times"
    more = "" if reads.count == 1 else ". Once is enough: read the sign of the sum"
    return f"one branch runs and the others cost nothing, but to decide, the host waits {times} in each call{more}"
