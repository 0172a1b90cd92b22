"""helpers.check: each known fault is found at its line, nothing is found where there is none, and what is called ready
replays what eager gives. Then the models of others.
"""

import copy
import inspect
import json
import random
import re
import sys
from pathlib import Path

import helpers
from helpers import __main__, models
from helpers import check as check_function
from helpers.check import CheckError, check
from helpers.findings import KINDS, STOPS, WRONG, Gain

import check_modules
import nbformat
import numpy
import pytest
import torch
from check_modules import CLEAN, FAULTY, ROWS, WIDTH, Body, ThreeWaits
from processes import helpers as run_helpers
from torch import nn
from torch.nn import functional as F

helpers.activate(verbose=False)

ROOT = Path(__file__).resolve().parent.parent
X = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def any_gain(request, monkeypatch):
    """What is tested here must not depend on how busy the machine is, as the gain of a small module does."""
    if "measured_gain" not in request.keywords:
        monkeypatch.setattr(sys.modules["helpers.check"], "WORTH", 0.0)


def examine(kind, **options):
    torch.manual_seed(0)
    return check(kind(), *kind.inputs(), **options)


def severe(report):
    return {(f.kind, f.place and f.place.line) for f in report.findings if f.severity in (STOPS, WRONG)}


def kinds(report):
    return {f.kind for f in report.findings}


def marked(kind):
    """What the comments in the source of a module say: {(kind of finding, line)}."""
    lines, start = inspect.getsourcelines(kind)
    return {(m.group(1), n) for n, line in enumerate(lines, start) if (m := re.search(r"# fault: ([\w ]+)$", line))}


# ---- what is found, and where


def test_there_are_enough_modules():
    assert len(FAULTY) >= 15 and len(CLEAN) >= 15
    assert check_function is check
    told = {kind for name in FAULTY for kind, _ in marked(FAULTY[name])} | {k for m in CLEAN.values() for k in m.notes}
    elsewhere = {"task queue", "refused", "alias", "fixed input", "differs", "no proof", "unchanged"}  # tested below
    assert told | elsewhere == set(KINDS)


@pytest.mark.filterwarnings("ignore:Cannot create tensor with internal format")
@pytest.mark.parametrize("name", FAULTY)
def test_a_known_fault_is_found_at_its_line(name):
    report = examine(FAULTY[name])
    expected = marked(FAULTY[name])
    assert expected and expected <= severe(report), report
    assert {line for _, line in severe(report)} == {line for _, line in expected}, report
    assert not report.ready and report.changes >= 1
    assert all(f.place.file == check_modules.__file__ for f in report.findings if f.place)
    hopeless = getattr(FAULTY[name], "hopeless", "")
    assert hopeless in report.hopeless and (report.verdict == "not a candidate") == bool(hopeless)


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_module_is_ready_and_alarms_nobody(name):
    report = examine(CLEAN[name])
    assert kinds(report) == CLEAN[name].notes, report
    assert severe(report) == set() and report.alike and report.replays == 8 and report.waits == 0
    assert (report.equal < 8) == getattr(CLEAN[name], "statistics", False)
    assert report.verdict == "ready" and report.gain.speedup > 0


def test_a_wait_in_a_loop_is_counted():
    report = examine(ThreeWaits)
    (found,) = report.findings
    assert (found.kind, found.times, report.waits, report.changes) == ("waits", 3, 3, 1)
    assert found.place.expression in ("float(x[0, 0])", "x = layer(x) * float(x[0, 0])")  # Python 3.10 knows the line


@pytest.mark.parametrize(
    "name, said",
    [
        ("Branch", "`if` reads the truth value of a tensor"),
        ("Loop", "`while` reads the truth value of a tensor"),
        ("Assertion", "`assert` reads the truth value of a tensor"),
        ("Item", "item()"),
    ],
)
def test_a_condition_is_not_called_an_item(name, said):
    (found,) = (f for f in examine(FAULTY[name]).findings if f.kind == "waits")
    assert found.what == said


@pytest.mark.parametrize(
    "model, word",
    [
        (lambda x: x * 2 if x.sum() > 0 else x - 1, "`if`"),
        (lambda x: x * (not x.sum() > 0), "`not`"),
        (lambda x: (x.sum() > 0 and x * 2) + 1, "`and`"),
    ],
)
def test_a_condition_within_an_expression_is_named(model, word):
    found = check(model, X.abs()).findings[0]
    assert found.what == f"{word} reads the truth value of a tensor"


def test_what_torch_npu_computes_on_the_cpu_is_not_called_a_wait():
    model = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, batch_first=True).eval()
    report = check(model, X.unsqueeze(0))
    (found,) = report.findings
    assert (found.kind, found.what, report.waits) == ("fallback", "_transformer_encoder_layer_fwd", 1)
    assert "no such operator for the NPU and computes it on the CPU" in found.why
    assert "torch.backends.mha.set_fastpath_enabled(False)" in found.how
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        assert check(model, X.unsqueeze(0)).ready, "the advice helps"
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_links_lead_to_headings_of_the_notebook():
    notebook = nbformat.read(ROOT / "notebooks" / "04_avoid_the_pitfalls.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    headings = set(re.findall(r"^#+ (.+)$", text, re.M))
    assert {heading for *_, heading in KINDS.values()} <= headings


# ---- no false calm


def test_normal_that_records_nothing_is_not_ready():
    """torch.normal with numbers, in a capture: see notebook 4."""

    class Noisy(Body):
        def forward(self, x):
            return self.body(x) + torch.normal(0.0, 1.0, (ROWS, WIDTH), device="npu")

    report = check(Noisy(), X)
    assert {"random", "differs"} <= kinds(report) and not report.alike and not report.ready


def test_a_model_that_draws_is_compared_by_its_statistics_and_they_find_what_is_frozen():
    class Drifting(CLEAN["DropoutThenAttention"]):
        def forward(self, x):
            check_modules.COUNTED[0] += 1
            return super().forward(x) + (check_modules.COUNTED[0] > 20)  # after the calls that are recorded

    check_modules.COUNTED[0] = 0
    report = check(Drifting(), X)
    assert {"random", "differs"} <= kinds(report) and not report.alike and not report.ready


def test_a_change_every_fifth_call_that_nothing_shows_is_met_by_the_replays():
    class EveryFifth(Body):
        def forward(self, x):
            check_modules.COUNTED[0] += 1
            return self.body(x) * (2 if check_modules.COUNTED[0] % 5 == 0 else 1)

    check_modules.COUNTED[0] = 0
    report = check(EveryFifth(), X)
    assert kinds(report) == {"differs"} and report.equal < report.replays and not report.ready


def test_a_layer_of_torch_itself_has_its_own_lines():
    report = check(nn.LSTM(WIDTH, WIDTH), torch.randn(3, 2, WIDTH))
    assert {(f.kind, f.place.short) for f in report.findings} == {("recomputed", "torch/nn/modules/rnn.py")}
    assert report.ready
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
    assert check(layer, X[None], train=True).ready
    x = torch.randn(2, 5, WIDTH)
    attention = check(nn.MultiheadAttention(WIDTH, 2, batch_first=True), x, x, x)
    assert kinds(attention) == {"alias"} and attention.ready


def test_outputs_that_do_not_depend_on_the_inputs_prove_nothing():
    class Deaf(Body):
        def forward(self, x):
            return self.body(torch.ones_like(x))

    report = check(Deaf(), X)
    assert "no proof" in kinds(report) and report.equal == report.replays and not report.ready


def test_an_input_of_equal_elements_is_named():
    report = check(Masked(), X, torch.ones(ROWS, WIDTH))
    assert kinds(report) == {"unchanged"} and report.ready
    assert kinds(check(Masked(), X, torch.tensor(2.0))) == {"unchanged"}
    report = check(Masked(), X, torch.ones(ROWS, WIDTH), fresh=(X + 1, torch.zeros(ROWS, WIDTH)))
    assert report.findings == () and report.ready


class Masked(Body):
    def forward(self, x, mask):
        return self.body(x * mask) + x


def test_one_tensor_for_two_inputs_is_named():
    report = check(Masked(), X, X)
    assert kinds(report) == {"alias"} and report.ready

    class Doubled(Body):
        def forward(self, x, y):
            x.mul_(2)
            return self.body(x + y)

    x = X.clone()
    report = check(Doubled(), x, x)
    assert {"alias", "writes input"} <= kinds(report) and report.equal < report.replays and torch.equal(x, X)


@pytest.mark.parametrize(("value", "found"), [(2.0, True), (3, True), (None, False), (True, False)])
def test_an_input_that_is_no_tensor_is_fixed(value, found):
    report = check(lambda x, factor: F.gelu(F.gelu(F.gelu(x * (1 if factor is None else factor)) + 1) + 2), X, value)
    assert kinds(report) == ({"fixed input"} if found else set())
    changed = check(lambda x, more: F.gelu(x) if more else x + 1, X, True, fresh=(X + 1, False))
    assert "fixed input" in kinds(changed) and changed.equal < changed.replays and not changed.ready


def test_what_only_a_capture_refuses_is_found_too():
    class Refused(Body):
        def forward(self, x):
            if torch.npu.is_current_stream_capturing():
                raise KeyError("here")
            return self.body(x)

    report = check(Refused(), X)
    (found,) = report.findings
    assert (found.kind, found.what) == ("refused", "'here'") and "raise KeyError" in found.place.expression
    assert (report.replays, report.verdict) == (0, "ready after 1 change")


def test_an_attribute_with_a_longer_name_is_not_overlooked():
    class Two(Body):
        step, steps = 0, ()

        def forward(self, x):
            self.step += 1
            self.steps = self.step * 2, 3
            return self.body(x)

    assert {f.what.partition(":")[0] for f in check(Two(), X).findings} == {"step", "steps[0]"}


def test_a_number_among_the_outputs_is_compared():
    class Timed(Body):
        def forward(self, x):
            return self.body(x), next(check_modules.COUNTER)

    report = check(Timed(), X)
    assert kinds(report) == {"differs"} and not report.ready


def test_a_process_whose_task_queue_cannot_capture_is_not_ready():
    torch.npu.set_task_queue_enable(2)
    try:
        report = check(Body(), X)
        assert torch.npu.get_task_queue_enable() == 2
    finally:
        torch.npu.set_task_queue_enable(0)
    assert kinds(report) == {"task queue"} and report.verdict == "ready after 1 change"


# ---- the gain


@pytest.mark.timed
@pytest.mark.measured_gain
def test_a_model_of_one_large_kernel_is_not_a_candidate():
    class Large(nn.Module):
        def forward(self, x):
            return (x @ x) @ x

    report = check(Large(), torch.randn(1024, 1024) / 32)
    assert report.equal == 8 and report.findings == ()
    assert report.verdict == "not a candidate" and "less than 5%" in report.hopeless and report.gain.speedup < 1.05


def test_gain_and_break_even():
    gain = Gain(3.0, 1.0, 10.0, "measured")
    assert (gain.speedup, gain.break_even) == (3.0, 5)
    assert Gain(1.0, 1.0, 10.0, "measured").break_even is None and Gain(3.0, 1.0, None, "").break_even is None


# ---- the model is afterwards as before


def test_nothing_of_the_user_changes():
    torch.manual_seed(0)
    model, heard = Everything(), []
    model.register_forward_hook(lambda module, args, output: heard.append(output.shape))
    model.layers[0].eval()
    weights = copy.deepcopy(model.state_dict())
    calls, x = 0, X.clone()

    def function(x):
        nonlocal calls
        calls += 1
        return model(x)

    torch.manual_seed(3), random.seed(3), numpy.random.seed(3)
    expected = torch.rand(2), torch.rand(2, device="npu").cpu(), random.random(), numpy.random.rand()
    for checked in (model, function):
        torch.manual_seed(3), random.seed(3), numpy.random.seed(3)
        report = check(checked, x, train=checked is model)
        assert "attribute" in kinds(report) and "buffers" in kinds(report)
        found = torch.rand(2), torch.rand(2, device="npu").cpu(), random.random(), numpy.random.rand()
        assert all(numpy.array_equal(a, b) for a, b in zip(expected, found, strict=True))
    assert (calls, heard, model.steps) == (0, [], 0) and torch.equal(x, X)
    assert all(p.device.type == "cpu" and p.grad is None for p in model.parameters())
    assert model.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert model.training and not model.layers[0].training
    assert torch.npu.get_task_queue_enable() == 0 and not torch.is_anomaly_enabled()
    assert "noted" not in nn.Module.__setattr__.__name__ and "noted" not in torch.npu.synchronize.__name__


class Everything(Body):
    def __init__(self):
        super().__init__()
        self.norm, self.steps = nn.BatchNorm1d(WIDTH), 0

    def forward(self, x):
        self.steps += 1
        return self.body(self.norm(x)) * torch.rand_like(x) + random.random()


def test_a_function_is_checked_with_the_variables_around_it():
    model, steps = Body().npu(), torch.zeros((), device="npu")

    def function(x):
        steps.add_(1)
        return model(x) / steps

    (found,) = check(function, X).findings
    assert (found.kind, found.what) == ("buffers", "steps") and steps.item() == 0
    assert check(lambda x: model(x), X).ready


# ---- training


def test_training_is_captured_with_its_backward():
    report = check(check_modules.Mlp(), X, train=True)
    forward = check(check_modules.Mlp(), X)
    assert report.ready and report.equal == 8 and report.kernels > 2 * forward.kernels


def test_training_with_batch_norm_says_what_the_warm_up_changes():
    report = check(FAULTY["BatchNorm"](), X, train=True)
    assert severe(report) == marked(FAULTY["BatchNorm"]) and report.equal == 8
    assert "norm.running_mean" in report.findings[0].what and report.verdict == "ready after 1 change"


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient / max(1.0, gradient.norm().item())


def test_a_wait_in_the_backward_pass_is_found():
    class Model(Body):
        def forward(self, x):
            return Clipped.apply(self.body(x))

    report = check(Model(), X, train=True)
    (found,) = report.findings
    assert found.kind == "waits" and found.place.file == __file__ and "item()" in found.place.expression
    assert check(Model(), X).ready


def test_a_gradient_with_a_shape_of_the_data_is_at_its_forward_line():
    class Model(Body):
        def forward(self, x):
            y = self.body(x)
            return torch.where(y > 0, y, 0.0)[y > 0].mean()

    report = check(Model(), X, train=True)
    assert {f.place.expression for f in report.findings if f.kind in ("shapes", "waits")}
    assert all(f.place and f.place.file == __file__ for f in report.findings if f.severity == STOPS), report


# ---- what can't be checked


@pytest.mark.parametrize(
    ("model", "inputs", "fresh", "says"),
    [
        (Body(), (torch.randn(ROWS, 3),), None, "the model fails in eager on its inputs, before any capture. RuntimeE"),
        (Body(), (X, X), None, "before any capture. TypeError: Body.forward() takes 2 positional arguments"),
        (Body(), (3.0,), None, "no input is a tensor"),
        (Body(), (X,), (X, X), "the fresh inputs are 2 values, or in another order than the 1 of the inputs"),
        (Body(), (X,), (X.double(),), "fresh input 0: expected ((4, 16), torch.float32), got ((4, 16), torch.float64)"),
        (nn.Embedding(4, 2), (torch.tensor([0, 1]),), (torch.tensor([0, 9]),), "fails in eager on its fresh inputs"),
        (3, (X,), None, "the model is a int, which can't be called"),
        (lambda x: x.shape, (X,), None, "the model gives a Size without tensors"),
    ],
)  # fmt: skip
def test_a_check_that_cannot_be_made_is_one_line(model, inputs, fresh, says):
    with pytest.raises(CheckError) as caught:
        check(model, *inputs, fresh=fresh)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_inputs_whose_order_matters_ask_for_fresh_ones():
    def first_is_small(x):
        if x[0] > 1:
            raise ValueError("not sorted")
        return x * 2

    with pytest.raises(CheckError, match="does not take their elements in another order, so give it fresh inputs"):
        check(first_is_small, torch.arange(8.0))


def test_a_model_without_gradient_is_not_trained():
    with pytest.raises(CheckError, match="cannot be trained"):
        check(lambda x: x + 1, X, train=True)


def test_a_model_that_cannot_be_copied_is_not_run():
    model = Body()
    model.lock = __import__("threading").Lock()
    with pytest.raises(CheckError, match="can't be copied, and a check must not change it: cannot pickle"):
        check(model, X)


# ---- how it is told


@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_an_operator_of_the_cpu_is_no_wait(name):
    class Special(Body):
        def forward(self, x):
            return getattr(torch, name)(self.body(x).abs() + 1)

    assert kinds(check(Special(), X)) == {"fallback"}


def test_an_attention_in_eval_is_computed_on_the_cpu():
    x = torch.randn(2, 5, WIDTH)
    assert "fallback" in kinds(check(nn.MultiheadAttention(WIDTH, 2, batch_first=True).eval(), x, x, x))


def test_the_masks_of_a_layer_in_training_are_not_called_ready():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)
    report = check(layer, X[None], train=True)
    (found,) = (f for f in report.findings if f.severity in (STOPS, WRONG))
    assert found.kind == "masks" and found.place.short == "torch/nn/functional.py"
    assert not report.ready and report.replays == 0 and "not tried" in report.error


@pytest.mark.timed
def test_the_report_as_text_json_and_table():
    report = examine(FAULTY["StepCounter"])
    text, page, found = str(report), report._repr_html_(), json.loads(json.dumps(report.to_dict(), allow_nan=False))
    line = dict(marked(FAULTY["StepCounter"]))["number"]
    assert text.startswith("verdict  ready after 2 changes\n") and f"tests/check_modules.py:{line}" in text
    assert "modelled for ascend_910b2" in text and "pays after" in text
    assert 'href="04_avoid_the_pitfalls.ipynb#A-Python-number-is-frozen"' in page and "<script" not in page
    assert found["verdict"] == report.verdict and found["gain"]["speedup"] == report.gain.speedup
    assert {f["place"]["line"] for f in found["findings"]} == {line for _, line in severe(report)}
    assert {f["place"]["file"] for f in found["findings"]} == {"tests/check_modules.py"}


def command(capsys, *args):
    code = __main__.main(["check", *args])
    return code, *capsys.readouterr()


def test_the_command_in_a_process():
    done = run_helpers("check", "check_modules:not_ready", "--json", PYTHONPATH=f"{ROOT / 'src'}:{ROOT / 'tests'}")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"] == "ready after 1 change" and report["findings"][0]["kind"] == "waits"
    assert done.stderr == ""


def test_the_command_says_ready_and_keeps_prints_apart(capsys):
    code, out, _ = command(capsys, "check_modules:ready")
    assert code == 0 and out.startswith("verdict  ready\n")
    code, out, err = command(capsys, "check_modules:with_fresh_inputs", "--json")
    assert code == 0 and json.loads(out)["ready"] and err == "made\n"
    code, out, _ = command(capsys, "check_modules:ready", "--train")
    assert code == 0


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("check_modules", "'check_modules' is not of the form package.module:factory"),
        ("no_such_module:make", "no_such_module:make: No module named 'no_such_module': it is looked for in the"),
        ("check_modules:nothing", "check_modules:nothing: AttributeError: module 'check_modules' has no attribute"),
        ("check_modules:broken", "check_modules:broken: ValueError: no such"),
        ("check_modules:that_exits", "check_modules:that_exits: SystemExit: 0"),
        ("check_modules:only_a_model", "check_modules:only_a_model gave a Mlp, expected (model, inputs) or"),
        ("check_modules:that_do_not_fit", "the model fails in eager on its inputs, before any capture. RuntimeError:"),
        ("check_modules:fresh_that_do_not_fit", "fresh input 0: expected ((4, 16), torch.float32), got ((5, 16)"),
        ("check_modules:one_number_too_many", "before any capture. TypeError: Body.forward() takes 2 positional"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(factory, says, capsys):
    code, out, err = command(capsys, factory)
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1


def test_help_says_the_exit_codes(capsys):
    with pytest.raises(SystemExit):
        command(capsys, "--help")
    assert "Exit code 0: ready, 1: not ready, 2: bad usage" in " ".join(capsys.readouterr().out.split())


# ---- the models of others


def test_climax_as_published_and_without_its_index():
    sizes = dict(width=32, layers=2, size=(16, 32))
    published, fixed = (models.climax(**sizes, device_index=index) for index in (True, False))
    report = check(published, *published.inputs(1))
    (found,) = (f for f in report.findings if f.severity == STOPS)
    assert (found.kind, found.times, found.place.short) == ("waits", 48, "src/helpers/models/climax.py")
    assert "self.token_embeds[which[i]]" in found.place.expression and report.verdict == "ready after 1 change"
    assert check(fixed, *fixed.inputs(1)).ready


def test_the_stand_in_of_aurora_with_its_guards_and_without():
    sizes = dict(width=32, layers=(2, 2), size=(17, 32), levels=(100, 500), window=(2, 4, 4))
    guarded, free = (models.aurora_stand_in(**sizes, guards=guards) for guards in (True, False))
    report = check(guarded, *guarded.inputs(1), fresh=guarded.inputs(1, seed=1))
    assert report.waits == 47 and {"constants", "fixed input"} <= kinds(report) and not report.ready
    assert check(free, *free.inputs(1), fresh=free.inputs(1, seed=1)).ready


SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {"vocab_size": 64, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def words(*shape):
    return torch.randint(4, 64, shape, generator=torch.Generator().manual_seed(0))


def test_bert_asks_whether_a_token_is_hidden():
    transformers = pytest.importorskip("transformers")
    bert = transformers.BertForMaskedLM(transformers.BertConfig(**TEXT, **SIZE)).eval()
    report = check(bert, words(2, 16), torch.ones(2, 16))
    (found,) = (f for f in report.findings if f.severity == STOPS)
    assert (found.kind, found.place.short, report.waits) == ("waits", "transformers/masking_utils.py", 1)
    assert "padding_mask.all()" in found.place.expression and report.verdict == "ready after 1 change"
    assert check(bert, words(2, 16), torch.ones(2, 1, 16, 16).bool()).ready  # a mask of four dimensions is not asked


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
def test_gpt2_with_a_cache_that_grows_and_with_one_that_does_not():
    transformers = pytest.importorskip("transformers")

    class Decoder(nn.Module):
        def __init__(self, cache, **sizes):
            super().__init__()
            config = transformers.GPT2Config(**TEXT, n_embd=32, n_layer=2, n_head=4)
            self.gpt2 = transformers.GPT2LMHeadModel(config).eval()
            self.cache = cache(config=config, **sizes)

        def forward(self, ids, mask):
            return self.gpt2(ids, attention_mask=mask, past_key_values=self.cache).logits

    growing = check(Decoder(transformers.DynamicCache), words(2, 1), torch.ones(2, 1, 1, 1).bool())
    found = {(f.kind, f.place.short, f.place.expression) for f in growing.findings if f.severity == WRONG}
    cat = [expression for kind, file, expression in found if kind == "grows" and file == "transformers/cache_utils.py"]
    assert len(cat) == 1 and "torch.cat([self.keys, key_states]" in cat[0]
    assert ("number", "transformers/models/gpt2/modeling_gpt2.py") in {place[:2] for place in found}, "the position"
    assert growing.equal < growing.replays and not growing.ready

    static = check(Decoder(transformers.StaticCache, max_cache_len=32), words(2, 1), torch.ones(2, 1, 1, 32).bool())
    assert {f.kind for f in static.findings if f.severity in (STOPS, WRONG)} == {"buffers"}, "the warm-up fills it"
    assert static.equal == static.replays == 8
