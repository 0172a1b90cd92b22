"""Record a call of a model: each operator with its place in the user's code, what a capture refuses of it, and what
the call leaves behind.

``check`` compares such records: what differs between two calls is what a capture would freeze.
"""

import contextlib
import dis
import functools
import io
import itertools
import linecache
import re
import site
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType
from unittest import mock

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .waits import copied_from

# ---- places

# torch_npu is not imported before activate(): it needs the device.
_LIBRARIES = tuple(str(Path(torch.__file__).parent.with_name(name)) + "/" for name in ("torch", "torch_npu"))
_LAYERS = str(Path(torch.__file__).with_name("nn")) + "/"
REFUSED = r"\b(107027|107030|107041)\b"  # codes with which CANN answers a wait, or a copy that waits, in a capture
_STANDARD = sysconfig.get_paths()["stdlib"]
_SITES = tuple(sorted({*site.getsitepackages(), *sys.path} - {""}, key=len, reverse=True))
_TESTS = "JUMP|TO_BOOL|UNARY_NOT"  # instructions that ask whether something is true
_CHECK = str(Path(__file__).with_name("check.py"))
_OWN = (_CHECK, __file__, str(Path(__file__).with_name("capture.py")))


@dataclass(frozen=True)
class Place:
    """A line of the user's code: what is not PyTorch, torch_npu, Python's own library, or this tool."""

    file: str
    line: int
    expression: str

    @property
    def short(self) -> str:
        """The file without what is only of this machine."""
        if "ipykernel_" in self.file:  # of a notebook's cell: a name of this process
            return "cell"
        packages = [root for root in _SITES if "-packages" in root]  # they may lie in the project, as its .venv
        roots = (*packages, str(Path.cwd()), *_SITES)
        inside = next((root for root in roots if self.file.startswith(root + "/")), None)
        return self.file[len(inside) + 1 :] if inside else Path(self.file).name

    def to_dict(self) -> dict:
        return {"file": self.short, "line": self.line, "expression": self.expression}

    def __str__(self) -> str:
        return f"{self.short}:{self.line}"


def _of_the_user(file: str) -> bool:
    if file.startswith((*_LIBRARIES, "<")) or file in _OWN:
        return False
    return not file.startswith(_STANDARD) or "-packages" in file


def _caller(frame: FrameType | None) -> tuple[CodeType, int, int] | None:
    """The innermost frame of the user, or of torch.nn where the model is made of nothing else: code, instruction, line.
    It is kept raw, because most are never looked at.
    """
    layer = None
    while frame is not None and frame.f_code.co_filename != _CHECK:  # what called the check is not of the model
        here = frame.f_code, frame.f_lasti, frame.f_lineno
        if _of_the_user(frame.f_code.co_filename):
            return here
        if layer is None and frame.f_code.co_filename.startswith(_LAYERS):
            layer = here
        frame = frame.f_back
    return layer


@functools.lru_cache(1000)
def resolved(raw) -> Place | None:
    """The Place of a raw one, with the exact expression where Python (3.11 on) knows it, else with the line."""
    if raw is None or isinstance(raw, Place):
        return raw
    code, instruction, line = raw
    positions = None if instruction is None else _positions(code, instruction)
    if positions is None or None in positions:
        return Place(code.co_filename, line, linecache.getline(code.co_filename, line).strip())
    line, last, start, end = positions
    text = linecache.getline(code.co_filename, line).encode()
    return Place(code.co_filename, line, text[start : end if last == line else None].decode().strip())


def _positions(code: CodeType, offset: int):
    """First and last line, start and end of what an instruction computes; of what it tests, if it is a jump."""
    before = [found for found in dis.get_instructions(code) if found.offset <= offset]
    while len(before) > 1 and re.search(_TESTS, before[-1].opname):
        before.pop()
    return getattr(before[-1], "positions", None)


def tested_by(raw) -> str:
    """What in Python asks at a raw place whether something is true: "`if`", "`while`", "`not`"; "" if nothing does."""
    if raw is None or isinstance(raw, Place) or raw[1] is None:
        return ""
    code, instruction, line = raw
    names = [found.opname for found in dis.get_instructions(code) if found.offset <= instruction]
    if not re.search(_TESTS, names[-1]):
        return ""
    words = _names_of(linecache.getline(code.co_filename, line))
    asking = [w for w in words if w in ("if", "elif", "while", "assert")] or [w for w in words if w in _JOINING]
    return f"`{asking[0]}`" if asking else "a condition"  # of more than one line


_JOINING = ("and", "or", "not")


def _names_of(line: str) -> list[str]:
    """The words of a line of Python, without those of comments and strings."""
    words = []
    with contextlib.suppress(tokenize.TokenError, IndentationError):  # it is a part of something, and may end early
        for token in tokenize.generate_tokens(io.StringIO(line.strip()).readline):
            if token.type == tokenize.NAME:
                words.append(token.string)
    return words


def place_in(trace: list[str]) -> Place | None:
    """The innermost place of the user in the lines of a formatted traceback."""
    for file, line in reversed(re.findall(r'File "(.+?)", line (\d+)', "".join(trace))):
        if file == _CHECK:
            return None
        if _of_the_user(file):
            return Place(file, int(line), linecache.getline(file, int(line)).strip())
    return None


def _forward_place():
    """In a backward pass: the line whose gradient it is. Anomaly detection has noted it."""
    node = torch._C._current_autograd_node()
    return place_in(node.metadata.get("traceback_", [])) if node else None


# ---- operators


@dataclass
class Op:
    """One operator of a call. numbers: what Python gave it that is not a tensor on the device."""

    name: str
    numbers: tuple
    shapes: tuple
    where: object
    on_device: bool = True  # what the CPU computes is not recorded in a graph
    refused: str = ""  # kind of finding, if a capture refuses it
    error: str = ""
    draws: bool = False  # it has moved the device's generator


@dataclass
class Call:
    """What happened in one call."""

    ops: list[Op] = field(default_factory=list)
    waits: list = field(default_factory=list)  # torch.npu.synchronize() and the like: no operators
    writes: dict[str, object] = field(default_factory=dict)  # name of a tensor that an operator writes: where
    reads: dict[str, object] = field(default_factory=dict)
    sets: dict[str, object] = field(default_factory=dict)  # attribute that is assigned: where
    random: list = field(default_factory=list)  # (drawn on the host?, where)
    ragged: list[torch.Tensor] = field(default_factory=list)  # results whose shape depends on data
    spread: bool = False  # one of them feeds what a mask on the full shape would not do as well
    aside: object = None  # where the first operator on a side stream is


class Recorder(TorchDispatchMode):
    """Records the operators of a call, and asks the device about each: it is captured alone, once for each form of it.

    A refusal does not end the call, so all of them show in one. named: {address of a storage: name} of the tensors to
    watch. known: answers of the device, kept from call to call.
    """

    def __init__(self, named: dict[int, str], known: dict):
        super().__init__()
        self.named, self.known, self.call = named, known, Call()
        self.main, self.side = torch.npu.current_stream(), torch.npu.Stream()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        where = _caller(sys._getframe(1)) or _forward_place()
        leaves = tree_leaves((args, kwargs))
        # Not each of them does: an attention without dropout, say. torch_npu's own have no such tag.
        may_draw = torch.Tag.nondeterministic_seeded in func.tags or func.namespace == "npu"
        before = _generators() if may_draw else None
        try:
            result = func(*args, **kwargs)
        except RuntimeError:
            self.call.ops.append(Op(str(func), (), (), where, True, *self._refusal(func, args, kwargs, leaves, ())))
            raise
        results = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        moved = [not state.equal(old) for state, old in zip(_generators(), before, strict=True)] if may_draw else [0, 0]
        self.call.random += [(on_host, where) for on_host, has in zip((True, False), moved, strict=True) if has]
        numbers, shapes = tuple(map(_number, leaves)), tuple(tuple(x.shape) for x in results)
        op = Op(str(func), numbers, shapes, where, any(_on_npu(x) for x in (*leaves, *results)))
        op.draws = bool(moved[1])
        op.refused, op.error = self._refusal(func, args, kwargs, leaves, results)
        self.call.ops.append(op)
        self._note(func, args, kwargs, leaves, results, op)
        return result

    def _note(self, func, args, kwargs, leaves, results, op) -> None:
        call, arguments = self.call, enumerate(func._schema.arguments)
        is_written = [(i, a.name) for i, a in arguments if a.alias_info and a.alias_info.is_write]
        written = tree_leaves([args[i] if i < len(args) else kwargs.get(name) for i, name in is_written])
        for noted, tensors in ((call.writes, written), (call.reads, leaves)):
            for x in tensors:
                if isinstance(x, torch.Tensor) and (name := self.named.get(address(x))):
                    noted.setdefault(name, op.where)
        if call.aside is None and torch.npu.current_stream() != self.main:
            call.aside = op.where
        if op.refused == "shapes":
            call.ragged += results
        elif any(x is y for x in leaves for y in call.ragged):
            if func.is_view or torch.Tag.pointwise in func.tags:
                call.ragged += results
            else:
                put_back = func.overloadpacket.__name__ in (
                    "index_put",
                    "index_put_",
                    "_index_put_impl_",
                    "masked_scatter",
                )
                call.spread |= torch.Tag.reduction not in func.tags and not put_back

    def _refusal(self, func, args, kwargs, leaves, results) -> tuple[str, str]:
        if not any(_on_npu(x) for x in (*leaves, *results)):
            return "", ""
        if func.overloadpacket.__name__ == "lift_fresh":  # all that is seen of torch.tensor(numbers, device="npu")
            return "constants", ""
        if func.is_view:
            return "", ""
        form = (
            func,
            tuple((x.shape, x.dtype, x.device.type) if isinstance(x, torch.Tensor) else str(x) for x in leaves),
        )
        if form not in self.known:
            self.known[form] = self._answer(func, args, kwargs)
        return self.known[form]

    def _answer(self, func, args, kwargs) -> tuple[str, str]:
        error = self._captured_alone(func, args, kwargs)
        if not error:
            return "", ""
        name = func.overloadpacket.__name__
        if "aclop" in error:
            return "aclop", error
        if not re.search(REFUSED, error):
            return "refused", error
        if not _for_npu(func):
            return "fallback", error
        if torch.Tag.dynamic_output_shape in func.tags or name == "repeat_interleave":
            return "shapes", error
        return "constants" if copied_from(func, args) == "cpu" else "waits", error

    def _captured_alone(self, func, args, kwargs) -> str:
        graph, said = torch.npu.NPUGraph(), ""
        with torch.npu.stream(self.side):
            graph.capture_begin()
            try:
                func(*args, **kwargs)
            except RuntimeError as error:
                said = str(error)
            finally:
                with contextlib.suppress(RuntimeError):  # it fails if the operator did
                    graph.capture_end()
        graph.reset()
        return said


def _for_npu(func) -> bool:
    """False for an operator without a kernel for an NPU not made of others: torch_npu computes it on the CPU."""
    keys = torch._C.DispatchKey
    if func.overloadpacket.__name__ == "_native_multi_head_attention":  # its kernel does that within
        return False
    if any(map(func.has_kernel_for_dispatch_key, (keys.PrivateUse1, keys.CompositeImplicitAutograd,
                                                  keys.CompositeExplicitAutograd))):  # fmt: skip
        return True
    forms = [getattr(func.overloadpacket, name) for name in func.overloadpacket.overloads() if "out" in name]
    return func.has_kernel_for_dispatch_key(keys.CompositeExplicitAutogradNonFunctional) and any(
        form.has_kernel_for_dispatch_key(keys.PrivateUse1) for form in forms
    )


def _on_npu(x) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == "npu"


def _generators() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.get_rng_state(), torch.npu.get_rng_state()


def _number(x):
    if not isinstance(x, torch.Tensor):
        return repr(x)
    if x.device.type == "cpu" and x.dim() == 0:  # torch_npu takes it as a number
        return repr(x.item())
    return x.device.type


def address(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr() if x.layout is torch.strided else 0


@contextlib.contextmanager
def recorded(named: dict[int, str], modules: dict[int, str], known: dict) -> Iterator[Call]:
    """A context that records what happens in it. modules: {id of a module: its name}, for what is assigned to it."""
    recorder = Recorder(named, known)
    call, assign = recorder.call, nn.Module.__setattr__

    def noted_assign(module, name, value):
        if id(module) in modules and (where := _caller(sys._getframe(1))):
            call.sets.setdefault(modules[id(module)] + name, (where[0], None, where[2]))  # the whole line
        assign(module, name, value)

    def noted_wait(wait: Callable):
        def noted(*args, **kwargs):
            call.waits.append(_caller(sys._getframe(1)))
            return wait(*args, **kwargs)

        return noted

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.Module, "__setattr__", noted_assign))
        for owner in (torch.npu, torch.npu.Stream, torch.npu.Event):
            stack.enter_context(mock.patch.object(owner, "synchronize", noted_wait(owner.synchronize)))
        stack.enter_context(recorder)
        yield call


@dataclass(frozen=True)
class Difference:
    kind: str  # "number", "shape" or "path": other operators
    op: Op
    before: str
    after: str


def differences(a: Call, b: Call) -> list[Difference]:
    """Where two calls went apart. It ends at the first other operator or shape: what follows is its consequence."""
    found = []
    ours, theirs = ([op for op in call.ops if op.on_device] for call in (a, b))
    for x, y in zip(ours, theirs, strict=False):
        if x.name != y.name:
            return [*found, Difference("path", y, x.name, y.name)]
        if x.shapes != y.shapes:
            return [*found, Difference("shape", y, str(x.shapes), str(y.shapes))]
        pairs = itertools.zip_longest(x.numbers, y.numbers, fillvalue="nothing")
        found += [Difference("number", y, *pair) for pair in pairs if pair[0] != pair[1]]
    if len(ours) != len(theirs):
        more = max(ours, theirs, key=len)[min(len(ours), len(theirs))]
        found.append(Difference("path", more, f"{len(ours)} operators", f"{len(theirs)}"))
    return found


# ---- state

MANY = 1000  # of a larger container only the number of its entries is looked at
_OF_TORCH = set(vars(nn.Module())) | {"_is_hf_initialized"}


def modules_of(model: Callable) -> dict[str, nn.Module]:
    """{name, with a dot at its end: module} of a module, or of those that a function holds."""
    if isinstance(model, nn.Module):
        return {f"{name}." if name else "": module for name, module in model.named_modules()}
    found = {}
    for name, value in held_by(model).items():
        if isinstance(value, (nn.Module, FunctionType, MethodType)) and value is not model:
            found |= {f"{name}.{inner}": module for inner, module in modules_of(value).items()}
    return found


def held_by(function: Callable) -> dict[str, object]:
    """The variables around a function that it uses, and the object of a method."""
    found = {"self": function.__self__} if hasattr(function, "__self__") else {}
    plain = getattr(function, "__func__", function)
    names = plain.__code__.co_freevars if isinstance(plain, FunctionType) else ()
    for name in names:
        cell = plain.__closure__[names.index(name)]
        with contextlib.suppress(ValueError):  # empty
            found[name] = cell.cell_contents
    return found


def state(model: Callable) -> dict[str, object]:
    """{name: tensor or text} of all that a call could change: buffers, attributes and what they hold, and variables
    around a function. Parameters are left out.
    """
    found = {}
    for name, module in modules_of(model).items():
        for key, value in vars(module).items():
            if key not in _OF_TORCH:
                found |= _leaves(value, name + key)
        found |= {name + key: value for key, value in module._buffers.items() if value is not None}
    for name, value in held_by(model).items():
        if not isinstance(value, nn.Module):
            found |= _leaves(value, name)
    return found


def _leaves(x, path: str, depth: int = 4, seen: tuple = ()) -> dict[str, object]:
    if isinstance(x, torch.Tensor):
        return {path: x}
    if isinstance(x, (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, Enum)):
        return {path: repr(x)}
    if depth == 0 or isinstance(x, (nn.Module, type)) or callable(x) or id(x) in seen:
        return {path: type(x).__name__}
    if isinstance(x, dict):
        inner = {f"{path}[{key!r}]": value for key, value in x.items()}
    elif isinstance(x, (list, tuple, set, frozenset)):
        inner = {f"{path}[{i}]": value for i, value in enumerate(x)}
    else:
        inner = {f"{path}.{key}": value for key, value in getattr(x, "__dict__", {}).items()}
    found = {path: f"{type(x).__name__} of {len(inner)}"}
    if len(inner) <= MANY:
        for key, value in inner.items():
            found |= _leaves(value, key, depth - 1, (*seen, id(x)))
    return found
