"""helpers.check: each known fault is found at its line, nothing is found where there is none, and what is called ready
replays what eager gives.
"""

import inspect
import json
import re
import warnings

import helpers
from helpers.check import CheckError, check
from helpers.findings import KINDS, NOTE, SLOWER, STOPS, WRONG

import check_modules
import nbformat
import pytest
import torch
from check_modules import CLEAN, FAULTY, Body
from torch import nn

helpers.activate(verbose=False)


def examine(kind, **options):
    torch.manual_seed(0)
    return check(kind(), *kind.inputs(), **options)


def severe(report):
    return {(f.kind, f.place and f.place.line) for f in report.findings if f.severity in (STOPS, WRONG)}


def marked(kind):
    """What the comments in the source of a module say: {(kind of finding, line)}."""
    lines, start = inspect.getsourcelines(kind)
    return {(m.group(1), n) for n, line in enumerate(lines, start) if (m := re.search(r"# fault: ([\w ]+)$", line))}


def test_there_are_enough_modules():
    assert len(FAULTY) >= 15 and len(CLEAN) >= 15


@pytest.mark.parametrize("name", FAULTY)
def test_a_known_fault_is_found_at_its_line(name):
    report = examine(FAULTY[name])
    print(report)
    assert marked(FAULTY[name]) <= severe(report)
    assert not report.ready and report.changes >= 1
    assert all(f.place.file == check_modules.__file__ for f in report.findings if f.place)


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_module_is_ready_and_alarms_nobody(name):
    report = examine(CLEAN[name])
    print(report)
    assert {f.kind for f in report.findings} == CLEAN[name].notes
    assert severe(report) == set() and report.equal == report.replays == 4 and report.waits == 0
    assert report.verdict == "ready"
