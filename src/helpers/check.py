"""Is a model ready for a graph? Run it, find what a capture would refuse or freeze, then capture it and compare."""

import contextlib
import copy
import random
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import CellType, FunctionType, ModuleType
from unittest import mock

import ascend_sim

import numpy
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from . import bench, device
from .capture import Captured, CaptureError, capture, first_error
from .findings import STOPS, WORTH, WRONG, Findings, Gain, Report
from .records import REFUSED, Call, address, modules_of, place_in, recorded, resolved, state
from .suspects import Run, equal, look_at_numbers, look_at_operators, look_at_state, why_hopeless

WARM_UP = 3
REPLAYS = 8  # a check of a few would miss what happens every fifth call
DRAWS = 32  # calls that are compared by their statistics


class CheckError(ValueError):
    """The check cannot be made: the model fails in eager, or its inputs do not fit. One line."""


def check(model: Callable, *inputs, fresh: Sequence | None = None, train: bool = False) -> Report:
    """Find what a capture of ``model(*inputs)`` would refuse, freeze or change, then try it.

    model: a module, on CPU or NPU, in the mode it is in, or a function; its own tensors are on the device.
    inputs: tensors on CPU or NPU, or trees of them; anything else in them is fixed by a capture.
    fresh: inputs of the same shapes for the replays; by default the elements of each input in another order.
    train: forward, and backward of the outputs' sum, instead of a forward without gradients.

    All runs are those of copies. The model with its hooks, the variables around a function, the inputs and the random
    generators are afterwards as before; globals of a module are shared, so what a model writes there stays.
    Replays are compared with eager bit for bit, with the same seed before each call. A model that draws on the device
    by operators of several kinds draws other numbers then (fused attention moves the generator otherwise in a capture):
    it is compared by its statistics. What happens once in many calls, and shows in no attribute, is not seen.
    On the simulated device the gain is modelled, for a card's profile; on an Ascend it is measured. Both are at level 0
    of the task queue: at level 1, a script's default, eager is faster.
    Raises CheckError if the model fails without any capture.
    """
    device.activate(threads=None, verbose=False)
    if not callable(model):
        raise CheckError(f"the model is a {type(model).__name__}, which can't be called")
    with _as_before() as level:
        return _Examination(model, inputs, fresh, train).report(level)


@contextlib.contextmanager
def _as_before() -> Iterator[int]:
    """Random generators, stream and task queue are afterwards as before. Within, the task queue is at level 0: an error
    at level 1 would stop it, and would come late. Gives the level before.
    """
    host, numbers, level = random.getstate(), numpy.random.get_state(), device.task_queue()
    stream, settable = torch.npu.current_stream(), hasattr(torch.npu, "set_task_queue_enable")
    with torch.random.fork_rng([torch.npu.current_device()], device_type="npu"):
        if settable:
            torch.npu.set_task_queue_enable(0)
        try:
            yield level
        finally:
            torch.npu.set_stream(stream)
            if settable:
                torch.npu.set_task_queue_enable(level)
            random.setstate(host)
            numpy.random.set_state(numbers)


def _seed(number: int) -> None:
    torch.manual_seed(number)  # host and device
    random.seed(number)
    numpy.random.seed(number)


class _Examination:
    """One check. Each run has a copy of the model of its own, so that all begin at the same state."""

    def __init__(self, model: Callable, inputs: tuple, fresh: Sequence | None, train: bool):
        self.model, self.train = model, train
        leaves, self.form = tree_flatten(inputs)
        self.inputs = [x.detach() if isinstance(x, torch.Tensor) else x for x in leaves]
        self.tensors = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        if not self.tensors:
            raise CheckError("no input is a tensor: there is nothing to check a replay with")
        self.given = fresh is not None
        self.fresh = self._that_fit(tuple(fresh)) if self.given else _shuffled(self.inputs)
        self.found = Findings()

    def _that_fit(self, fresh: tuple) -> list:
        leaves, form = tree_flatten(fresh)
        if form != self.form:
            raise CheckError(f"the fresh inputs are {form.num_leaves} values, or in another order than the "
                             f"{self.form.num_leaves} of the inputs")  # fmt: skip
        for i in self.tensors:
            want, got = ((tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else type(x).__name__
                         for x in (self.inputs[i], leaves[i]))  # fmt: skip
            if want != got:
                raise CheckError(f"fresh input {i}: expected {want}, got {got}")
        return [x.detach() if isinstance(x, torch.Tensor) else x for x in leaves]

    def report(self, level: int) -> Report:
        if level == 2:
            self.found.add("task queue", "this process runs at TASK_QUEUE_ENABLE=2")
        try:
            kernels = self._watch()
        except _NoAclnn as stop:
            self.found.add("aclop", stop.args[0], stop.args[1])
            said = str(stop.args[0])
            return Report(self.found.sorted(), None, 0, 0, False, None, "it does not run here", "", said)
        captured, error = self._captured()
        if captured and self.found.any("masks"):
            captured, error = None, "not tried, because it may be right by luck"
        same, alike = self._compared(captured) if captured else (0, False)
        gain, no_gain = self._gain(captured=not error)
        hopeless = self.hopeless
        if not hopeless and gain and gain.speedup < WORTH:
            hopeless = f"a graph would gain less than {WORTH - 1:.0%}"
        return Report(
            self.found.sorted(), kernels, 0 if error else REPLAYS, same, alike, gain, no_gain, hopeless, error
        )

    # ---- runs

    def _copy(self) -> Callable:
        try:
            return _copied(self.model)
        except Exception as error:
            raise CheckError(
                f"the model can't be copied, and a check must not change it: {device.brief(error)}"
            ) from None

    def _run(self, model: Callable, leaves: list) -> list[torch.Tensor]:
        """The outputs that are tensors; in training the gradients of the parameters after them."""
        inputs = tree_unflatten(leaves, self.form)
        if not self.train:
            with torch.no_grad():
                return _tensors(model(*inputs))
        parameters = [p for m in modules_of(model).values() for p in m.parameters(recurse=False) if p.requires_grad]
        with torch.enable_grad():
            outputs = _tensors(model(*inputs))
            total = sum(x.sum() for x in outputs if x.requires_grad)
            if not isinstance(total, torch.Tensor):
                raise CheckError("no output has a gradient: it cannot be trained")
            gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        return [x.detach() for x in (*outputs, *gradients) if x is not None]

    def _eager(self, model: Callable, leaves: list, whose: str = "inputs") -> list[torch.Tensor]:
        try:
            outputs = [x.clone() for x in self._run(model, _on_device(leaves))]
            torch.npu.synchronize()  # an error of the device shows there
            return outputs
        except Exception as error:
            raise _failed(error, whose) from None

    # ---- what can be found without a capture

    def _watch(self) -> int | None:
        """Compare the records of calls: a warm-up, two with the same inputs, one with others. Kernels of a call."""
        model, known, runs = self._copy(), {}, []
        whose = "fresh inputs" if self.given else "shuffled inputs"
        for number, leaves in enumerate((self.inputs, self.inputs, self.inputs, self.fresh)):
            before = state(model)
            held = {key: x.clone() for key, x in before.items() if isinstance(x, torch.Tensor)}
            on_device = _on_device(leaves)
            host = random.getstate(), str(numpy.random.get_state())
            call, outputs = self._recorded(model, before, on_device, known, "inputs" if number < 3 else whose)
            moved = host != (random.getstate(), str(numpy.random.get_state()))
            runs.append(Run(call, outputs, before, held, state(model), moved))
        _, second, third, other = runs
        look_at_operators(self.found, third.call, other.call)
        look_at_numbers(self.found, second, third, other)
        look_at_state(self.found, model, third, other.held)
        self._inputs(third.call)
        self.hopeless = why_hopeless(third, other)
        self.aside = resolved(third.call.aside)
        _seed(0)
        outputs = self._eager(model := self._copy(), self.inputs)
        _seed(0)
        if equal(outputs, self._eager(self._copy(), self.fresh)):
            self.found.add("no proof", "the outputs")
        return bench.kernel_times(lambda: self._run(model, on_device), runs=1)[0]

    def _recorded(self, model, before, leaves, known, whose) -> tuple[Call, list[torch.Tensor]]:
        named = {address(leaves[i]): f"input {i}" for i in reversed(self.tensors)}
        named |= {address(p): f"parameter {name}{key}" for name, module in modules_of(model).items()
                  for key, p in module._parameters.items() if p is not None}  # fmt: skip
        named |= {address(x): name for name, x in before.items() if isinstance(x, torch.Tensor)}
        named.pop(0, None)  # no memory at all
        names = {id(module): name for name, module in modules_of(model).items()}
        anomaly = torch.autograd.set_detect_anomaly(self.train, check_nan=False)  # notes the line of each gradient
        with anomaly, recorded(named, names, known) as call:
            try:
                outputs = self._run(model, leaves)
                torch.npu.synchronize()  # an error of the device shows there
                return call, outputs
            except Exception as error:
                if call.ops and call.ops[-1].refused == "aclop":
                    raise _NoAclnn(device.brief(error), resolved(call.ops[-1].where)) from None
                raise _failed(error, whose) from None

    def _inputs(self, call: Call) -> None:
        for i in self.tensors:
            if raw := call.writes.get(f"input {i}"):
                self.found.add("writes input", f"input {i}", resolved(raw))
            if self.inputs[i].numel() and not self.given and torch.equal(self.inputs[i], self.fresh[i]):
                self.found.add("unchanged", f"input {i}")
        places = [address(self.inputs[i]) for i in self.tensors]
        for i, at in zip(self.tensors, places, strict=True):
            first = self.tensors[places.index(at)]
            if at and first != i:
                self.found.add("alias", f"inputs {first} and {i}")
        for i, x in enumerate(self.inputs):
            if not isinstance(x, (torch.Tensor, bool, str, type(None))):
                self.found.add("fixed input", f"input {i}, {x!r:.40}")
            elif not isinstance(x, torch.Tensor) and x != self.fresh[i]:
                self.found.add("fixed input", f"input {i}, {x!r:.40}, then {self.fresh[i]!r:.40}")

    # ---- the attempt

    def _captured(self) -> tuple[Captured | None, str]:
        """A copy of the model, captured, or why it is not."""
        model = self._copy()
        _seed(0)
        try:
            captured = capture(self._of_tensors(model), *(self.inputs[i] for i in self.tensors), warmup=WARM_UP)
        except CaptureError as error:
            self._refused(error)
            return None, device.brief(first_error(error))
        except Exception as error:  # of the warm-up
            raise _failed(error, "inputs, on a side stream") from None
        # One operator, captured alone, may be refused where the whole is not: it has what an eager one gave it.
        self.found.drop("refused")
        return captured, ""

    def _compared(self, captured: Captured) -> tuple[int, bool]:
        """Let it and another copy take the same calls: how many replays equal eager bit for bit; do all, if only by
        their statistics.
        """
        twin = self._copy()
        _seed(0)
        for _ in range(WARM_UP):
            self._eager(twin, self.inputs)
        pairs = self._pairs(twin, captured, [self.fresh, self.inputs] * (REPLAYS // 2))
        same = [equal(*pair) for pair in pairs]  # when all are done: some mistakes show only then
        alike = all(same)
        if not alike and self.found.any("random"):
            alike = all(_alike(self._pairs(twin, captured, [x] * DRAWS)) for x in (self.fresh, self.inputs))
        if not alike and not any(f.severity == WRONG for f in self.found):
            self.found.add("differs", f"replay {same.index(False) + 1} of {len(same)}")
        return sum(same), alike

    def _pairs(self, twin: Callable, captured: Captured, calls: list) -> list[tuple]:
        """What eager and a replay give, with the same seed."""
        pairs = []
        for number, leaves in enumerate(calls, 1):
            _seed(number)
            expected = self._eager(twin, leaves)
            _seed(number)
            pairs.append((expected, captured(*(leaves[i] for i in self.tensors), clone=True)))
        return pairs

    def _of_tensors(self, model: Callable) -> Callable:
        def of_tensors(*tensors):
            leaves = list(self.inputs)
            for i, x in zip(self.tensors, tensors, strict=True):
                leaves[i] = x
            return self._run(model, leaves)

        return of_tensors

    def _refused(self, error: CaptureError) -> None:
        """The capture's own error, if it is none of those that are found already."""
        cause = first_error(error)
        where = place_in(traceback.format_tb(cause.__traceback__))
        known = {(f.place.file, f.place.line) for f in self.found if f.place and f.severity == STOPS}
        if where is None and known or where and (where.file, where.line) in known:
            return
        if "107025" in str(cause):
            self.found.add("unjoined", "a side stream", self.aside)
        elif re.search(REFUSED, str(cause)):  # of Python that hides its operators, as printing does
            self.found.add("waits", device.brief(cause), where)
        else:
            self.found.add("refused", device.brief(cause), where)

    # ---- the gain

    def _gain(self, captured: bool) -> tuple[Gain | None, str]:
        if device.activate(threads=None, verbose=False).kind == "ascend":
            clock, source = contextlib.nullcontext(), "measured"
        else:
            clock, source = ascend_sim.paced(), f"modelled for {ascend_sim.CARD}"
        source += f", TASK_QUEUE_ENABLE={device.task_queue()}"
        eager, graphed, inputs = self._copy(), self._copy(), _on_device(self.inputs)
        few = dict(repeats=3, warmup=2)  # a model with a state may stand only so many calls
        try:
            with clock:
                eager_ms = bench.measure(lambda: self._run(eager, inputs), **few).median_ms
                if not captured:
                    _, busy = bench.kernel_times(lambda: self._run(eager, inputs), runs=1)
                    return (Gain(eager_ms, busy, None, source, True), "") if busy else (None, "there is no graph")
                graph = capture(self._of_tensors(graphed), *(inputs[i] for i in self.tensors), warmup=WARM_UP)
                replay_ms = bench.measure(graph.graph.replay, **few).median_ms
            return Gain(eager_ms, replay_ms, sum(graph.seconds) * 1e3, source), ""
        except (RuntimeError, ValueError) as error:  # Python asks for a value that the paced clock does not compute
            waits = self.found.any("waits", "shapes", "fallback")
            return None, "until the host waits for no value" if waits else device.brief(error)


class _NoAclnn(Exception):
    """An operator that this device runs neither in a capture nor without: text and place."""


def _failed(error: Exception, whose: str) -> CheckError:
    if isinstance(error, CheckError):
        return error
    with contextlib.suppress(RuntimeError):  # what the device still has to say of it would hit the next one to wait
        torch.npu.synchronize()
    hint = ": it does not take their elements in another order, so give it fresh inputs" if "shuffled" in whose else ""
    said = f"{type(error).__name__}: {device.brief(error)}"
    return CheckError(f"the model fails in eager on its {whose}, before any capture{hint}. {said}")


def _copied(model: Callable) -> Callable:
    """A copy on the device. Python copies a module, but not a function with the variables around it: here it does."""
    kinds = {FunctionType: _copied_function, ModuleType: lambda module, memo: module}
    with mock.patch.dict(copy._deepcopy_dispatch, kinds), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is copied
        model = copy.deepcopy(model)
    for module in modules_of(model).values():
        nn.Module.to(module, "npu")  # a model may have an attribute of that name
    return model


def _copied_function(function: FunctionType, memo: dict) -> FunctionType:
    if not function.__closure__:
        return function
    cells = [CellType() for _ in function.__closure__]
    made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells))
    made.__kwdefaults__ = function.__kwdefaults__
    memo[id(function)] = made  # it may hold itself
    for cell, old in zip(cells, function.__closure__, strict=True):
        with contextlib.suppress(ValueError):  # empty
            cell.cell_contents = copy.deepcopy(old.cell_contents, memo)
    return made


def _on_device(leaves: list) -> list:
    """Copies on the device. What is one tensor stays one."""
    made: dict[tuple, torch.Tensor] = {}
    return [made.setdefault(_view(x), x.to("npu", copy=True)) if isinstance(x, torch.Tensor) else x for x in leaves]


def _view(x: torch.Tensor) -> tuple:
    return (x.data_ptr() or id(x), x.dtype, x.shape, x.stride()) if x.layout is torch.strided else (id(x),)


def _shuffled(leaves: list) -> list:
    made: dict[tuple, torch.Tensor] = {}
    return [made.setdefault(_view(x), bench._shuffled(x)) if isinstance(x, torch.Tensor) else x for x in leaves]


def _tensors(outputs) -> list[torch.Tensor]:
    """All tensors of the outputs, and all numbers of Python as tensors: a replay would keep those."""
    leaves = tree_leaves(outputs)
    if not any(isinstance(x, torch.Tensor) for x in leaves):
        raise CheckError(f"the model gives a {type(outputs).__name__} without tensors: there is nothing to compare")
    found = (torch.tensor(float(x), dtype=torch.float64) if isinstance(x, (int, float)) else x for x in leaves)
    return [x for x in found if isinstance(x, torch.Tensor)]


def _alike(pairs: list[tuple]) -> bool:
    """Are eager calls and replays draws of the same distribution? Means of each element within the noise, spreads
    within a factor of two, and what is not random equal.
    """
    eager, replayed = (
        torch.stack([torch.cat([x.cpu().double().reshape(-1) for x in outputs]) for outputs in side])
        for side in zip(*pairs, strict=True)
    )
    apart, noise = eager.mean(0) - replayed.mean(0), eager.var(0) + replayed.var(0)
    drawn = noise > 0
    if not drawn.any() or not torch.equal(eager[0, ~drawn], replayed[0, ~drawn]):
        return False
    spreads = eager.var(0)[drawn].mean() / replayed.var(0)[drawn].mean()
    return 0.5 < spreads < 2 and bool((apart[drawn] ** 2 / noise[drawn] * len(pairs)).mean() < 9)  # 1 is expected
