"""What a check finds, and how it is told: as text, as JSON, as a table in a notebook."""

import html
from collections.abc import Iterator
from dataclasses import dataclass

from .bench import break_even
from .records import Place

WORTH = 1.05  # a smaller gain is not worth a graph's fixed shapes
NOTEBOOK = "notebooks/04_avoid_the_pitfalls.ipynb"

LEFT = 'style="text-align:left"'

STOPS, WRONG, SLOWER, NOTE = "stops capture", "silently wrong", "slower", "note"

# Kind of finding: severity, why, how to rewrite, heading of the notebook.
KINDS = {
    "waits": (STOPS, "the host waits for a value of the device, and in a capture there is none yet",
              "keep it on the device (torch.where, a mask), or decide outside the graph",
              "Keep decisions out of the graph"),
    "shapes": (STOPS, "the shape of the result depends on the data, and a graph has one shape for good",
               "keep the full shape and mask what does not count", "Rewrite 2: mask instead of select"),
    "fallback": (STOPS, "torch_npu has no such operator for the NPU and computes it on the CPU, with copies",
                 "use other operators; those of torch.nn's attention in eval mode: "
                 "torch.backends.mha.set_fastpath_enabled(False)", "Look the symptom up"),
    "constants": (STOPS, "it copies numbers from the host to the device in each call",
                  "make the tensor once, in __init__, as a buffer; or torch.full(..., device=...)", "Warm up first"),
    "aclop": (STOPS, "the operator has no aclnn form, and only those enter a graph",
              "use another operator, or a CANN in which it has one", "Look the symptom up"),
    "task queue": (STOPS, "torch_npu refuses to capture there", "start the process with 1 or 0",
                   "Set `TASK_QUEUE_ENABLE` before you start"),
    "refused": (STOPS, "the device refuses it in a capture", "see the error", "Look the symptom up"),
    "unjoined": (STOPS, "the capture ends, and nobody has waited for it",
                 "main.wait_stream(side) after its work", "A side stream that nobody joins"),
    "number": (WRONG, "Python gives an operator another number in each call: a replay keeps that of the capture",
               "hold the number in a tensor on the device, and let the device change it", "A Python number is frozen"),
    "path": (WRONG, "Python takes another path in another call: a replay keeps that of the capture",
             "compute both and choose on the device, or one graph for each path",
             "Rewrite 3: branch outside, one graph per branch"),
    "grows": (WRONG, "a tensor has another shape in the next call: a replay keeps that of the capture",
              "allocate the largest once and write into it in place", "A batch of another shape"),
    "attribute": (WRONG, "the call changes it in Python, and a replay runs no Python",
                  "a buffer that the device changes in place, or keep it outside the graph",
                  "A Python number is frozen"),
    "rebound": (WRONG, "each call makes another tensor of it and reads the last: a replay reads that of the capture",
                "a buffer, written with copy_", "Rebinding the input instead of copying"),
    "buffers": (WRONG, "each call changes it, and so does the warm-up of a capture",
                "eval() for inference; else save it before the warm-up and copy it back",
                "What a warm-up leaves behind"),
    "host random": (WRONG, "the host draws random numbers: a replay keeps those of the capture",
                    "draw on the device (torch.rand_like, dropout)", "Random numbers"),
    # Ascend/op-plugin, FlashAttentionKernelNpuOpApi.cpp, npu_fusion_attention_v3: the event after the attention is
    # recorded only outside a capture, and the mask is given back with no recordStream.
    "masks": (WRONG, "in a capture torch_npu 2.13 gives the attention's mask back before it is read, and the next "
                     "dropout, on a stream beside it, may write its own mask there",
              "no dropout inside the attention, or softmax, dropout and products written out", "Random numbers"),
    "writes input": (WRONG, "it changes its input in place: a replay changes the graph's own copy, not the caller's",
                     "work on a new tensor, and return it", "Rebinding the input instead of copying"),
    "alias": (NOTE, "two inputs are one tensor here, and two in a graph", "pass it once",
              "Rebinding the input instead of copying"),
    "fixed input": (WRONG, "it is not a tensor: a replay keeps that of the capture",
                    "pass it as a tensor, or make one graph for each value", "A Python number is frozen"),
    "differs": (WRONG, "a replay does not give what eager gives", "find what the findings above do not name",
                "Catch the silent ones"),
    "no proof": (WRONG, "other inputs give the same outputs, so equal replays prove nothing",
                 "pass fresh inputs whose outputs differ", "A graph with nothing in it"),
    "random": (NOTE, "the device draws random numbers: replays draw new ones, from the generator that eager uses",
               "nothing; with the same seed a replay equals eager", "Random numbers"),
    "kept": (NOTE, "each call keeps another tensor there: after a replay it is that of the graph, and overwritten",
             "clone() it to keep it", "Keeping an output past the next replay"),
    "written": (NOTE, "the call writes there; the same call again writes the same, so a warm-up does no harm",
                "nothing, if what it holds before the first replay does not matter", "What a warm-up leaves behind"),
    "unchanged": (NOTE, "another order of its elements is the same, so it was not varied: what it decides is unchecked",
                  "pass fresh inputs", "Catch the silent ones"),
    "recomputed": (SLOWER, "each replay makes this constant anew", "make it once, in __init__, as a buffer",
                   "Warm up first"),
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that a capture refuses, freezes or pays for."""

    kind: str
    what: str
    place: Place | None = None
    times: int = 1  # per call

    @property
    def severity(self) -> str:
        return KINDS[self.kind][0]

    @property
    def why(self) -> str:
        return KINDS[self.kind][1]

    @property
    def how(self) -> str:
        return KINDS[self.kind][2]

    @property
    def link(self) -> str:
        return f"{NOTEBOOK}#{self.section.replace(' ', '-').replace('`', '')}"

    @property
    def section(self) -> str:
        return KINDS[self.kind][3]

    def to_dict(self) -> dict:
        keys = ("kind", "severity", "what", "times", "why", "how", "link")
        return {key: getattr(self, key) for key in keys} | {"place": self.place and self.place.to_dict()}

    def __str__(self) -> str:
        at = f"{self.place}  {_cut(self.place.expression)}" if self.place else "no line"
        times = f" ({self.times} times a call)" if self.times > 1 else ""
        return f"[{self.severity}] {at}{times}\n    {self.what}: {self.why}\n    do: {self.how}\n    {self.link}"


class Findings:
    """Findings, one of a kind at a place."""

    def __init__(self):
        self._all: dict[tuple, Finding] = {}

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._all.values())

    def add(self, kind: str, what: str, where: Place | None = None, times: int = 1) -> None:
        self._all.setdefault((kind, where or what), Finding(kind, what, where, times))

    def drop(self, kind: str) -> None:
        self._all = {key: f for key, f in self._all.items() if f.kind != kind}

    def any(self, *kinds: str) -> bool:
        return any(f.kind in kinds for f in self)

    def sorted(self) -> tuple[Finding, ...]:
        """By severity, else in the order of the calls."""
        return tuple(sorted(self, key=lambda f: (STOPS, WRONG, SLOWER, NOTE).index(f.severity)))


@dataclass(frozen=True)
class Gain:
    """What a graph is worth: times of a call, in ms. at_most: there is no graph yet, and the kernels alone take
    replay_ms.
    """

    eager_ms: float
    replay_ms: float
    cost_ms: float | None  # warm-up and capture
    source: str
    at_most: bool = False

    @property
    def speedup(self) -> float:
        return self.eager_ms / self.replay_ms

    @property
    def break_even(self) -> int | None:
        """Calls after which the graph has paid for itself; None if there is none, or its replay is not faster."""
        return None if self.cost_ms is None else break_even(self.eager_ms, self.replay_ms, self.cost_ms)

    def __str__(self) -> str:
        text = f"{'at most ' if self.at_most else ''}{self.speedup:.2f} times as fast, {self.source}"
        text += f" (eager {self.eager_ms:.3f} ms, {'kernels' if self.at_most else 'replay'} {self.replay_ms:.3f} ms)"
        return text if self.break_even is None else f"{text}; pays after {self.break_even} calls"


@dataclass(frozen=True, repr=False)
class Report:
    """What a check found. str() is for people, to_dict() for programs; a notebook shows a table."""

    findings: tuple[Finding, ...]
    kernels: int | None  # of a call in eager; None on an Ascend
    replays: int  # compared with eager; 0 if there is no graph
    equal: int  # of these, bit for bit
    alike: bool  # all equal, or where the device draws random numbers, by their statistics
    gain: Gain | None
    no_gain: str  # why there is none
    hopeless: str  # why it is not a candidate, or ""
    error: str = ""  # of the capture

    @property
    def changes(self) -> int:
        """Places that must change before a graph is right."""
        return len({(f.place and (f.place.file, f.place.line)) or f.what for f in self.findings
                    if f.severity in (STOPS, WRONG)})  # fmt: skip

    @property
    def ready(self) -> bool:
        return self.verdict == "ready"

    @property
    def verdict(self) -> str:
        if self.hopeless:
            return "not a candidate"
        if self.changes or not self.alike:
            return f"ready after {max(self.changes, 1)} change{'s' * (self.changes > 1)}"
        return "ready"

    @property
    def waits(self) -> int:
        """How often the host waits for a value or a shape of the device, per call."""
        return sum(f.times for f in self.findings if f.kind in ("waits", "shapes", "fallback"))

    def to_dict(self) -> dict:
        gain = self.gain and vars(self.gain) | {"speedup": self.gain.speedup, "break_even": self.gain.break_even}
        keys = (
            "verdict",
            "ready",
            "changes",
            "kernels",
            "waits",
            "replays",
            "equal",
            "alike",
            "hopeless",
            "error",
            "no_gain",
        )
        return {key: getattr(self, key) for key in keys} | {
            "gain": gain,
            "findings": [f.to_dict() for f in self.findings],
        }

    def _facts(self) -> list[tuple[str, str]]:
        kernels = "?" if self.kernels is None else self.kernels
        replays = f"{self.equal} of {self.replays} equal eager"
        replays += ", all by their statistics" if self.alike and self.equal < self.replays else ""
        return [
            ("verdict", self.verdict + (f": {self.hopeless}" if self.hopeless else "")),
            ("call", f"{kernels} kernels, {self.waits} host wait{'s' * (self.waits != 1)}"),
            ("replays", replays if self.replays else f"none: {self.error}"),
            ("gain", str(self.gain) if self.gain else f"unknown: {self.no_gain}"),
        ]

    def __repr__(self) -> str:
        lines = [f"{name:<9}{text}" for name, text in self._facts()]
        return "\n".join([*lines, *(f"\n{i}. {f}" for i, f in enumerate(self.findings, 1))])

    def _repr_html_(self) -> str:
        facts = "".join(
            f"<tr><th {LEFT}>{name}</th><td {LEFT}>{html.escape(text)}</td></tr>" for name, text in self._facts()
        )
        rows = []
        for f in self.findings:
            at = (
                f"{html.escape(str(f.place))}<br><code>{html.escape(_cut(f.place.expression))}</code>"
                if f.place
                else ""
            )
            section = f'<a href="{f.link.removeprefix("notebooks/")}">{f.section}</a>'
            why = f"{html.escape(f.what)}: {html.escape(f.why)}"
            cells = (f.severity, at, str(f.times), why, f"{html.escape(f.how)} ({section})")
            rows.append("<tr>" + "".join(f"<td {LEFT}>{cell}</td>" for cell in cells) + "</tr>")
        names = ("severity", "where", "times", "why", "what to do")
        head = "".join(f"<th {LEFT}>{name}</th>" for name in names)
        found = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>" if rows else ""
        return f"<table>{facts}</table>{found}"


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
