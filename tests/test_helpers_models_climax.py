"""helpers.models: ClimaX computes what the published forward pass computes, and waits 48 times where that does."""

import helpers
from helpers import bench
from helpers.models import CheckpointError, ClimaX, climax, load

import numpy as np
import pytest
import torch
from model_checks import WAIT_CODES, exact, on_device, refused, same, waits, waits_that_torch_npu_sees, weights
from torch import nn
from torch.nn import functional as F

SMALL = dict(width=32, layers=2, size=(8, 16))
FEW = dict(**SMALL, variables=("orography", "2m_temperature", "temperature_850"), out=("2m_temperature",))


def published_forward(weights, x, lead_times, variables, out, size, patch, heads):
    """``ClimaX.forward`` of climax/arch.py with ``metric=None``, in its steps and in eval mode, on a state_dict.

    A block is that of timm 0.6.12, which climax pins.
    """

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])

    ids = torch.from_numpy(np.arange(len(variables)))
    # forward_encoder: each variable by its own PatchEmbed
    embeds = []
    for i in range(len(ids)):
        name = f"token_embeds.{ids[i]}.proj"
        x_i = F.conv2d(x[:, i : i + 1], weights[f"{name}.weight"], weights[f"{name}.bias"], stride=patch)
        embeds.append(x_i.flatten(2).transpose(1, 2))
    x = torch.stack(embeds, dim=1)
    x = x + weights["var_embed"][:, ids, :].unsqueeze(2)
    # aggregate_variables
    b, _, patches, width = x.shape
    x = torch.einsum("bvld->blvd", x).flatten(0, 1)
    agg = nn.MultiheadAttention(width, heads, batch_first=True).eval()
    agg.load_state_dict(
        {name.removeprefix("var_agg."): w for name, w in weights.items() if name.startswith("var_agg.")}
    )
    x, _ = agg(weights["var_query"].repeat_interleave(x.shape[0], dim=0), x, x)
    x = x.squeeze().unflatten(dim=0, sizes=(b, patches))
    x = x + weights["pos_embed"]
    x = x + linear(lead_times.unsqueeze(-1), "lead_time_embed").unsqueeze(1)
    i = 0
    while f"blocks.{i}.norm1.weight" in weights:
        qkv = linear(norm(x, f"blocks.{i}.norm1"), f"blocks.{i}.attn.qkv")
        q, k, v = qkv.reshape(b, patches, 3, heads, width // heads).permute(2, 0, 3, 1, 4).unbind(0)
        attention = ((q @ k.transpose(-2, -1)) * (width // heads) ** -0.5).softmax(dim=-1)
        x = x + linear((attention @ v).transpose(1, 2).reshape(b, patches, width), f"blocks.{i}.attn.proj")
        x = x + linear(F.gelu(linear(norm(x, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.fc1")), f"blocks.{i}.mlp.fc2")
        i += 1
    x = norm(x, "norm")
    x = linear(F.gelu(linear(F.gelu(linear(x, "head.0")), "head.2")), "head.4")
    # unpatchify
    h, w, c = size[0] // patch, size[1] // patch, len(variables)
    x = torch.einsum("nhwpqc->nchpwq", x.reshape(b, h, w, patch, patch, c)).reshape(b, c, *size)
    return x[:, torch.tensor([variables.index(name) for name in out])]


@pytest.mark.parametrize(
    ("sizes", "parameters"), [({}, 108_088_512), (dict(size=(128, 256), patch=4), 110_841_600)], ids=str
)
def test_the_full_size_is_the_published_one(sizes, parameters):
    with torch.device("meta"):
        model = ClimaX(**sizes)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(model.variables) == len(set(model.variables)) == len(model.token_embeds) == 48


def test_names_are_the_published_ones():
    model = ClimaX(**FEW, heads=4)
    pair = ("weight", "bias")
    expected = ["var_embed", "var_query", "pos_embed"]
    expected += [f"token_embeds.{i}.proj.{x}" for i in range(3) for x in pair]
    expected += ["var_agg.in_proj_weight", "var_agg.in_proj_bias"] + [f"var_agg.out_proj.{x}" for x in pair]
    expected += [f"{name}.{x}" for name in ("lead_time_embed", "norm", "head.0", "head.2", "head.4") for x in pair]
    parts = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
    expected += [f"blocks.{i}.{part}.{x}" for i in (0, 1) for part in parts for x in pair]
    assert set(model.state_dict()) == set(expected)


@pytest.mark.parametrize("device_index", [True, False])
@pytest.mark.parametrize("sizes", [SMALL, FEW, dict(width=32, layers=1, size=(12, 8), patch=4)])
def test_equal_to_the_published_forward_bit_for_bit(sizes, device_index):
    model = climax(**sizes, heads=4, device_index=device_index)
    inputs = model.inputs(2)
    with torch.no_grad():
        expected = published_forward(
            model.state_dict(), *inputs, model.variables, model.out, model.size, model.patch, heads=4
        )
        assert torch.equal(model(*inputs), expected)


def test_the_published_index_waits_once_a_variable(capfd):
    for device_index, sizes, expected in ((True, SMALL, 48), (True, FEW, 3), (False, SMALL, 0)):
        model = climax(**sizes, device_index=device_index)
        inputs = model.inputs(1)
        assert waits(model, inputs) == expected
        assert waits_that_torch_npu_sees(model.to("npu"), inputs, capfd) == expected


@exact
@pytest.mark.parametrize("device_index", [True, False])
def test_the_device_gives_what_the_cpu_gives(device_index):
    model = climax(**SMALL, device_index=device_index)
    inputs = model.inputs(2)
    with torch.no_grad():
        on_cpu = model(*inputs)
        assert same(model.to("npu")(*on_device(inputs)), on_cpu)


def test_a_replay_gives_what_eager_gives():
    model = climax(**SMALL, device_index=False).to("npu")
    captured = helpers.capture(model, *model.inputs(2, seed=1))
    with torch.no_grad():
        for seed in (2, 3):
            inputs = model.inputs(2, seed=seed)
            assert same(captured(*inputs), model(*on_device(inputs)))


def test_a_capture_refuses_the_published_index():
    model = climax(**SMALL).to("npu")
    codes, line = refused(model, *model.inputs(1))
    assert codes and codes <= WAIT_CODES
    assert "self.token_embeds[which[i]]" in line


@exact
def test_the_index_changes_no_kernel():
    counts = []
    for device_index in (True, False):
        model = climax(**FEW, device_index=device_index).to("npu")
        inputs = on_device(model.inputs(1))
        with torch.no_grad():
            counts.append(bench.kernel_times(lambda: model(*inputs))[0])  # noqa: B023
    assert counts[0] == counts[1] > 0


def test_sizes_and_seeds():
    a, b, c = (climax(**FEW, seed=seed) for seed in (1, 1, 2))
    assert same(weights(a), weights(b)) and not same(weights(a), weights(c))
    assert same(a.inputs(2), a.inputs(2)) and not same(a.inputs(2), a.inputs(2, seed=1))
    with pytest.raises(ValueError, match="width 10 is not a multiple of 4 heads"):
        climax(10)
    with pytest.raises(ValueError, match="a grid of 9 x 16 does not divide into patches of 2"):
        climax(32, 1, size=(9, 16))
    with pytest.raises(ValueError, match="ozone is not among the variables"):
        climax(32, 1, out=("ozone",))


# ---- the published file: Lightning's, with the names that climax had before


def published(model):
    state = {f"net.{name}".replace("net.var_", "net.channel_"): x.clone() for name, x in model.state_dict().items()}
    return {"state_dict": state, "epoch": 1, "global_step": 2, "hyper_parameters": {}}


@pytest.mark.parametrize("older_names", [True, False])
def test_a_file_of_the_published_layout_loads(tmp_path, older_names):
    model, file = climax(**FEW), published(climax(**FEW, seed=1))
    assert "net.channel_agg.in_proj_weight" in file["state_dict"]
    if not older_names:
        file["state_dict"] = {name.replace("channel_", "var_"): x for name, x in file["state_dict"].items()}
    torch.save(file, tmp_path / "5.625deg.ckpt")
    load(model, tmp_path / "5.625deg.ckpt")
    assert same(weights(model), weights(climax(**FEW, seed=1)))


QUERY = "net.channel_query"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: state.pop(QUERY), "net.var_query is missing (1 missing keys)"),
        (lambda state: state.update({QUERY: torch.zeros(3)}), f"{QUERY} is (3,), expected (1, 1, 32)"),
        (
            lambda state: state.update({"net.channel_x": torch.zeros(1)}),
            "unexpected key net.channel_x (1 unexpected keys)",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_named_and_changes_nothing(tmp_path, change, says):
    model, path, file = climax(**FEW), tmp_path / "wrong.ckpt", published(climax(**FEW, seed=1))
    change(file["state_dict"])
    torch.save(file, path)
    with pytest.raises(CheckpointError) as caught:
        load(model, path)
    assert str(caught.value) == f"{path}: {says}"
    assert same(weights(model), weights(climax(**FEW)))


def test_a_file_for_another_grid_is_named(tmp_path):
    torch.save(published(climax(**{**FEW, "size": (16, 16)})), tmp_path / "other.ckpt")
    with pytest.raises(CheckpointError, match=r"net.pos_embed is \(1, 64, 32\), expected \(1, 32, 32\)"):
        load(climax(**FEW), tmp_path / "other.ckpt")


def test_a_truncated_file_is_named_and_changes_nothing(tmp_path):
    model, path = climax(**FEW), tmp_path / "cut.ckpt"
    torch.save(published(climax(**FEW, seed=1)), path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match="cut.ckpt: not a readable checkpoint"):
        load(model, path)
    assert same(weights(model), weights(climax(**FEW)))
