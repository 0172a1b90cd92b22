"""helpers.models: the names and arithmetic of GenMol, checkpoints, SMILES, a sampling step that can be captured."""

import collections
import functools
import sys
import types
from importlib import resources

import helpers
from helpers import bench, models
from helpers.models import (
    MASK,
    PAD,
    SPECIAL,
    CheckpointError,
    GenMol,
    SmilesTokenizer,
    TokenError,
    confidence_step,
    draw_noise,
    drawing_step,
    drugs,
    generate,
    generate_as_published,
    generate_in_buckets,
    genmol,
    genmol_tiny,
    in_buckets,
    load_checkpoint,
    masked_rows,
    molecules,
    published_step,
    sample_inputs,
    sampling_step,
)
from helpers.waits import host_waits

import pytest
import torch
from model_checks import WAIT_CODES, refused, waits_that_torch_npu_sees
from torch.utils._python_dispatch import TorchDispatchMode

here = helpers.activate(verbose=False)
exact = pytest.mark.skipif(here.kind == "ascend", reason="an Ascend rounds in its own way")

SMALL = dict(vocab=11, width=8, layers=2, heads=2, inner=16, length=12)


@pytest.fixture
def small():
    torch.manual_seed(0)
    return GenMol(**SMALL).eval()


# ---- the backbone


def test_the_full_size_is_genmols():
    with torch.device("meta"):
        model = GenMol()
    assert sum(p.numel() for p in model.parameters()) == 87_291_992
    assert len(model.state_dict()) == 204
    assert len(list(model.parameters())) == 202


def test_names_and_order_are_those_of_bert(small):
    layer = [
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "output.dense",
        "output.LayerNorm",
    ]
    e, p = "bert.embeddings", "cls.predictions"
    expected = [f"{e}.{name}_embeddings.weight" for name in ("word", "position", "token_type")]
    expected += [f"{e}.LayerNorm.weight", f"{e}.LayerNorm.bias"]
    expected += [f"bert.encoder.layer.{i}.{name}.{x}" for i in (0, 1) for name in layer for x in ("weight", "bias")]
    expected += [f"{p}.bias"] + [f"{p}.transform.{n}.{x}" for n in ("dense", "LayerNorm") for x in ("weight", "bias")]
    assert [name for name, _ in small.named_parameters()] == expected
    assert set(small.state_dict()) == {*expected, f"{p}.decoder.weight", f"{p}.decoder.bias"}


def test_equal_to_transformers_bit_for_bit(small):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
        pad_token_id=PAD,
        attn_implementation="eager",
    )
    reference = transformers.BertForMaskedLM(config).eval()
    small.load_state_dict(reference.state_dict())
    assert [n for n, _ in small.named_parameters()] == [n for n, _ in reference.named_parameters()]
    ids, mask = torch.randint(0, 11, (2, 12)), torch.arange(12) < torch.tensor([[12], [7]])
    with torch.no_grad():
        assert torch.equal(small(ids, mask), reference(ids, attention_mask=mask.long()).logits)


def test_padding_does_not_reach_the_tokens(small):
    ids, mask = torch.randint(0, 11, (1, 12)), torch.arange(12)[None] < 7
    changed = torch.where(mask, ids, (ids + 1) % 11)
    with torch.no_grad():
        assert torch.equal(small(ids, mask)[:, :7], small(changed, mask)[:, :7])
        assert not torch.equal(small(ids, mask)[:, :7], small(changed, torch.ones_like(mask))[:, :7])


@exact
@pytest.mark.parametrize(("width", "tokens", "batch"), [(32, 16, 1), (64, 16, 2), (96, 9, 3)])
def test_the_device_gives_what_the_cpu_gives_and_a_replay_too(width, tokens, batch):
    model = genmol(width, layers=2)
    ids, mask = sample_inputs(model, batch, tokens)
    mask[:, tokens - 2 :] = False
    with torch.no_grad():
        on_cpu = model(ids, mask)
        on_device = model.to("npu")(ids.npu(), mask.npu()).cpu()
    assert torch.equal(on_device, on_cpu)
    captured = helpers.capture(model, *sample_inputs(model, batch, tokens, seed=1))
    assert torch.equal(captured(ids, mask).cpu(), on_cpu)


@exact
@pytest.mark.parametrize(("width", "layers", "tokens", "batch"), [(32, 1, 16, 1), (64, 3, 9, 2)])
def test_the_number_of_kernels_is_that_of_the_layers(width, layers, tokens, batch):
    model = genmol(width, layers).to("npu")
    inputs = [x.npu() for x in sample_inputs(model, batch, tokens)]
    with torch.no_grad():
        assert bench.kernel_times(lambda: model(*inputs))[0] == models.kernels(layers)


def test_the_seed_fixes_weights_and_inputs():
    a, b, c = genmol(32, 1, seed=1), genmol(32, 1, seed=1), genmol(32, 1, seed=2)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.cls.predictions.transform.dense.weight, c.cls.predictions.transform.dense.weight)
    ids, mask = sample_inputs(a, 3, 5)
    assert torch.equal(ids, sample_inputs(a, 3, 5)[0]) and not torch.equal(ids, sample_inputs(a, 3, 5, seed=1)[0])
    assert (ids.shape, mask.shape, mask.dtype) == ((3, 5), (3, 5), torch.bool)
    assert torch.equal(a.inputs(3, 5)[0], ids)


def test_sizes_that_cannot_be():
    with pytest.raises(ValueError, match="width 10 is not a multiple of 4 heads"):
        genmol(10)
    with pytest.raises(ValueError, match="257 tokens, but the model has 256 positions"):
        sample_inputs(genmol(32, 1), 1, 257)


# ---- checkpoints


def checkpoint(model, shadow=True):
    """What GenMol's training writes: raw weights, and averaged ones that differ from them."""
    state = {f"backbone.{name}": value.clone() for name, value in model.state_dict().items()}
    average = [p.detach() + 1 for p in model.parameters()]
    ema = {"decay": 0.9999, "num_updates": 3, "shadow_params": average} if shadow else None
    return {"state_dict": state, "ema": ema, "epoch": 1, "global_step": 2, "hyper_parameters": {}}


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_averaged_weights_come_first_as_in_genmol(tmp_path, small):
    torch.save(checkpoint(small), tmp_path / "model.ckpt")
    raw, averaged = weights(small), [p + 1 for p in weights(small)]
    model = GenMol(**SMALL)
    load_checkpoint(model, tmp_path / "model.ckpt")
    assert same(weights(model), averaged)
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight, "still tied"
    load_checkpoint(model, tmp_path / "model.ckpt", ema=False)
    assert same(weights(model), raw)
    torch.save(checkpoint(small, shadow=False), tmp_path / "plain.ckpt")
    load_checkpoint(model := GenMol(**SMALL), tmp_path / "plain.ckpt")
    assert same(weights(model), raw)


def test_classes_that_a_checkpoint_names_do_not_run(tmp_path, small, monkeypatch):
    """GenMol's own holds its configuration as OmegaConf objects."""
    ran = []
    module = types.ModuleType("omegaconf_like")

    class Config(dict):
        def __setstate__(self, state):
            ran.append("setstate")

        def __reduce__(self):
            return rebuild, (1,), {"content": {"a": collections.OrderedDict()}}

    def rebuild(x):
        ran.append("rebuild")
        return Config()

    for thing in (Config, rebuild):
        thing.__module__, thing.__qualname__ = module.__name__, thing.__name__
        setattr(module, thing.__name__, thing)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    path = tmp_path / "model.ckpt"
    torch.save(checkpoint(small) | {"hyper_parameters": {"config": Config()}}, path)
    load_checkpoint(model := GenMol(**SMALL), path)
    assert ran == []
    assert same(weights(model), [p + 1 for p in weights(small)])


HEAD = "backbone.cls.predictions.transform.dense.weight"


def _without(file):
    del file["state_dict"][HEAD]


def _renamed(file):
    file["state_dict"] = {key.removeprefix("backbone."): value for key, value in file["state_dict"].items()}


def _shape(file):
    file["state_dict"][HEAD] = torch.zeros(8, 9)


def _shadow(file):
    file["ema"]["shadow_params"][-1] = torch.zeros(3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_without, f"{HEAD} is missing (1 missing keys)"),
        (_renamed, "backbone.bert.embeddings.word_embeddings.weight is missing (44 missing keys)"),
        (lambda f: f["state_dict"].update({"backbone.pooler": torch.zeros(1)}), "unexpected key backbone.pooler"),
        (_shape, f"{HEAD} is (8, 9), expected (8, 8)"),
        (lambda f: f["state_dict"].update({HEAD: [1.0]}), f"{HEAD} is list, expected (8, 8)"),
        (
            lambda f: f["state_dict"].update({HEAD: torch.zeros(8, 8, dtype=torch.int8)}),
            f"{HEAD} is a tensor of torch.int8, torch.strided, on cpu, expected floating point numbers",
        ),
        (lambda f: f.pop("state_dict"), "no state_dict, so not a Lightning checkpoint"),
        (lambda f: f["ema"]["shadow_params"].pop(), "ema.shadow_params has 41 tensors, expected 42"),
        (lambda f: f["ema"].pop("shadow_params"), "ema.shadow_params has no tensors, expected 42"),
        (_shadow, "ema.shadow_params[41] (cls.predictions.transform.LayerNorm.bias) is (3,), expected (8,)"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_named_and_changes_nothing(tmp_path, small, change, says):
    path, before = tmp_path / "wrong.ckpt", weights(small)
    change(file := checkpoint(GenMol(**SMALL)))
    torch.save(file, path)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(small, path)
    assert str(caught.value).startswith(f"{path}: {says}") and "\n" not in str(caught.value)
    assert same(weights(small), before)


@pytest.mark.parametrize("size", [0, 10, 2000, -100])
def test_a_truncated_checkpoint_is_named_and_changes_nothing(tmp_path, small, size):
    path, before = tmp_path / "cut.ckpt", weights(small)
    torch.save(checkpoint(GenMol(**SMALL)), path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(small, path)
    assert str(caught.value).startswith(f"{path}: not a readable checkpoint") and "\n" not in str(caught.value)
    assert same(weights(small), before)


def test_a_missing_checkpoint_is_named(tmp_path, small):
    with pytest.raises(CheckpointError, match="nowhere.ckpt: No such file or directory"):
        load_checkpoint(small, tmp_path / "nowhere.ckpt")


# ---- SMILES


def test_the_drugs_come_back_from_their_ids():
    known = list(drugs().values())
    tokenizer = SmilesTokenizer()
    assert (len(known), len(set(known)), len(tokenizer)) == (48, 48, 27)
    assert tuple(tokenizer.tokens[:5]) == SPECIAL
    ids, mask = tokenizer.encode(known, 64)
    assert tokenizer.decode(ids) == known
    assert torch.equal(mask, ids != PAD)
    assert tokenizer.split("C[C@@H](Cl)Br"[:11]) == ["C", "[C@@H]", "(", "Cl", ")"]


@pytest.mark.parametrize(
    ("smiles", "says"),
    [
        ("CC(=O)Xc1", r"'CC\(=O\)Xc1': unknown token 'X' at position 6"),
        ("CC[Zn]", r"'CC\[Zn\]': unknown token '\[Zn\]' at position 2"),
        ("CC[nH", r"'CC\[nH': unknown token '\[' at position 2"),
        ("C C", "unknown token ' ' at position 1"),
        ("C" * 15, "15 tokens and 2 ends do not fit into 16"),
    ],
)
def test_a_smiles_without_tokens_is_named(smiles, says):
    with pytest.raises(TokenError, match=says):
        SmilesTokenizer().encode(["CC", smiles], 16)


# ---- sampling


def plain_step(logits, ids, expo, gumbel, keep, temperature, randomness):
    """The rule of MDLM.step_confidence, row by row, with the shapes that depend on values."""
    new = ids.clone()
    for row, (tokens, scores) in enumerate(zip(ids, logits, strict=True)):
        best = None
        for at in (tokens == MASK).nonzero().flatten().tolist():
            score = scores[at].clone()
            score[MASK] = -1e6
            p = torch.softmax(score / temperature, -1)
            token = (p / expo[row, at]).argmax()
            sure = (p[token].log() + gumbel[row, at] * randomness * keep).item()
            if best is None or sure > best[0]:
                best = sure, at, token
        if best:
            new[row, best[1]] = best[2]
    return new


@pytest.fixture
def state():
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(5, 11, (4, 9), generator=generator)
    ids[0, 2:7] = ids[1, 1:3] = ids[2, 8] = MASK  # row 3 has none
    logits = torch.randn(4, 9, 11, generator=generator) * 3
    logits[..., MASK] += 9  # the step must not take it
    return logits, ids, *draw_noise(4, 9, 11, generator), torch.tensor([0.4])


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_a_step_fills_the_surest_mask_of_each_row(state, device):
    new = confidence_step(*(x.to(device) for x in state), 0.5, 0.7).cpu()
    assert torch.equal(new, plain_step(*state, 0.5, 0.7))
    ids = state[1]
    assert ((ids == MASK).sum(1) - (new == MASK).sum(1)).tolist() == [1, 1, 1, 0]
    assert torch.equal(new[ids != MASK], ids[ids != MASK])


def test_the_draw_follows_the_probabilities():
    generator = torch.Generator().manual_seed(0)
    n, p = 4000, torch.tensor([0.5, 0.3, 0.2])
    logits = torch.full((n, 1, 8), -1e9)
    logits[..., 5:] = p.log()
    noise = draw_noise(n, 1, 8, generator)
    drawn = confidence_step(logits, torch.full((n, 1), MASK), *noise, torch.ones(1), 1.0, 0.5)
    share = torch.bincount(drawn.flatten(), minlength=8)[5:] / n
    assert torch.allclose(share, p, atol=0.03)


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_neither_the_model_nor_the_step_waits_for_the_device(state):
    with Seen() as seen, torch.no_grad():
        sampling_step(genmol(32, 1, vocab=11))(state[1], state[1] != PAD, *state[2:])
    waits = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "index_put_", "index", "unique"}
    assert "softmax" in str(seen.names) and not seen.names & waits


def random_state(seed: int, batch=4, tokens=12, vocab=11):
    """Some rows of masks and tokens, logits as sure as those of a trained model, and the noise of a step."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, vocab, (batch, tokens), generator=generator)
    ids[torch.rand(batch, tokens, generator=generator) < torch.rand(batch, 1, generator=generator)] = MASK
    logits = torch.randn(batch, tokens, vocab, generator=generator) * 4
    return logits, ids, *draw_noise(batch, tokens, vocab, generator)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_the_published_step_and_the_static_one_give_the_same_tokens(device):
    for seed in range(50):
        logits, ids, *noise = (x.to(device) for x in random_state(seed))
        i, steps = seed % 12, 12
        keep = torch.tensor([1 - i / (steps - 1)]).to(device)
        static = confidence_step(logits, ids, *noise, keep, 0.5, 0.7)
        assert torch.equal(published_step(logits.clone(), ids, i, steps, 0.5, 0.7, tuple(noise)), static), seed


def test_the_published_step_draws_this_noise():
    """On the CPU, where a sample of Categorical is the argmax of p / expo too."""
    for seed in range(20):
        logits, ids, *_ = random_state(seed)
        torch.manual_seed(seed)
        expo = torch.empty(ids.numel(), logits.shape[-1]).exponential_().view_as(logits)
        noise = expo, -(-torch.rand(ids.shape).log()).log()
        torch.manual_seed(seed)
        new = published_step(logits.clone(), ids, 1, 12)
        assert torch.equal(new, confidence_step(logits, ids, *noise, torch.tensor([1 - 1 / 11])))


WAITS = {
    "scores[known] = -1e6": 1,
    "scores[known, ids[known]] = 0": 2,
    "choice = Categorical(probs=p)": 1,
    "gumbel = gumbel.to(ids.device)": 1,
    "confidence[~masked] = -torch.inf": 1,
    "ids[here] = drawn[here]": 2,
}


def test_the_published_step_waits_at_these_lines(capfd):
    logits, ids, *_ = (x.npu() for x in random_state(1))
    assert host_waits(lambda: published_step(logits, ids, 1, 12), molecules) == WAITS
    # torch_npu does not report the copy of the noise.
    assert waits_that_torch_npu_sees(published_step, (logits, ids, 1, 12), capfd) == sum(WAITS.values()) - 1


def test_a_capture_of_the_published_step_is_refused():
    logits, ids, *_ = random_state(1)
    codes, line = refused(lambda logits, ids: published_step(logits, ids, 1, 12), logits, ids)
    assert codes & WAIT_CODES and line == next(iter(WAITS))


def test_the_static_step_never_waits(capfd):
    model = genmol(32, 1, vocab=11).to("npu")
    ids, mask = (x.npu() for x in masked_rows([3, 5], 8))
    step, keep = drawing_step(model), torch.ones(1, device="npu")
    with torch.no_grad():
        assert host_waits(lambda: step(ids, mask, keep), molecules) == {}
    assert waits_that_torch_npu_sees(step, (ids, mask, keep), capfd) == 0


def test_molecules_of_like_length_share_a_call():
    calls = list(in_buckets([5, 20, 6, 9, 8, 7], (10, 12, 30), batch=3))
    assert calls == [(10, [0, 2, 5]), (10, [4]), (12, [3]), (30, [1])]
    with pytest.raises(ValueError, match="29 masks and 2 ends do not fit into the largest bucket, 30 tokens"):
        list(in_buckets([29], (10, 30), 1))


def steps_of(model, batch):
    """Eager, the forward pass captured, and the whole step captured; the graphs that were made."""
    graphs = []

    def example(tokens):
        return masked_rows([1] * batch, tokens)

    @functools.cache
    def forward(tokens):
        graphs.append(helpers.capture(model, *example(tokens)))
        return drawing_step(graphs[-1])

    @functools.cache
    def whole(tokens):
        graphs.append(helpers.capture(drawing_step(model), *example(tokens), torch.ones(1)))
        return graphs[-1]

    return {"eager": lambda tokens: drawing_step(model), "forward": forward, "whole": whole}, graphs


def test_buckets_give_the_same_molecules_eager_and_captured():
    model, tokenizer = genmol_tiny()
    lengths, buckets = models.drug_lengths(7, seed=2), (24, 40, 64)
    ways, graphs = steps_of(model.to("npu"), batch=2)
    ids = {name: generate_in_buckets(step, lengths, buckets, 2, seed=3) for name, step in ways.items()}
    assert torch.equal(ids["forward"], ids["eager"]) and torch.equal(ids["whole"], ids["eager"])
    assert len(graphs) == 2 * len({tokens for tokens, _ in in_buckets(lengths, buckets, 2)}) > 2
    assert [len(tokenizer.split(smiles)) for smiles in tokenizer.decode(ids["eager"])] == lengths
    assert not (ids["eager"] == MASK).any()
    again, other = (generate_in_buckets(ways["whole"], lengths, buckets, 2, seed) for seed in (3, 4))
    assert torch.equal(again, ids["whole"]) and not torch.equal(other, ids["whole"])


def test_a_bucket_waits_for_its_result_only():
    model, _ = genmol_tiny()
    step = drawing_step(model.to("npu"))
    found = host_waits(lambda: generate_in_buckets(lambda tokens: step, [4, 9], (16,), 2), molecules)
    assert found.pop("result[places, :tokens] = ids[: len(own)].cpu()") == 1
    assert all("masked_rows" in line or line.startswith("keep") for line in found), "else only before the first step"


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_the_published_loop_recalls_drugs_too(device):
    model, tokenizer = genmol_tiny()
    lengths = models.drug_lengths(8, seed=1)
    ids = generate_as_published(model.to(device), lengths, batch=4, seed=1, device=device)
    made = tokenizer.decode(ids)
    assert [len(tokenizer.split(smiles)) for smiles in made] == lengths
    assert len(set(made) & set(drugs().values())) >= 2


def test_sampling_gives_the_same_molecules_eager_and_captured():
    model, tokenizer = genmol_tiny()
    step = sampling_step(model.to("npu"))
    lengths = [len(tokenizer.split(drugs()[name])) for name in ("aspirin", "isoniazid", "gabapentin")]
    start, noise = masked_rows(lengths, 24), draw_noise(3, 24, len(tokenizer), torch.Generator())
    captured = helpers.capture(step, *start, *noise, torch.ones(1))
    ids = generate(step, lengths, 24, len(tokenizer), seed=5)
    assert torch.equal(generate(captured, lengths, 24, len(tokenizer), seed=5), ids)
    assert not torch.equal(generate(captured, lengths, 24, len(tokenizer), seed=6), ids)
    assert not (ids == MASK).any()
    if here.kind == "simulated":
        on_cpu = sampling_step(model.to("cpu"))
        assert torch.equal(generate(on_cpu, lengths, 24, len(tokenizer), seed=5, device="cpu"), ids)


def test_the_tiny_model_recalls_drugs():
    model, tokenizer = genmol_tiny()
    known = set(drugs().values())
    lengths = models.drug_lengths(20, seed=1)
    made = tokenizer.decode(generate(sampling_step(model), lengths, 64, len(tokenizer), device="cpu"))
    assert [len(tokenizer.split(smiles)) for smiles in made] == lengths
    assert len([smiles for smiles in made if smiles in known]) >= 8


def test_the_tiny_checkpoint_is_small_and_has_the_real_layout():
    with resources.as_file(resources.files("helpers") / "data" / "genmol_tiny.ckpt") as path:
        assert path.stat().st_size < 600_000
        file = torch.load(path, weights_only=True)
    assert {"state_dict", "ema", "hyper_parameters"} <= set(file)
    assert all(key.startswith("backbone.") for key in file["state_dict"])
    assert not torch.equal(file["ema"]["shadow_params"][0], next(iter(file["state_dict"].values())))


def test_rows_that_do_not_fit():
    with pytest.raises(ValueError, match="9 masks and 2 ends do not fit into 10 tokens"):
        masked_rows([8, 9], 10)
    with pytest.raises(ValueError, match="0 masks"):
        masked_rows([0], 10)
