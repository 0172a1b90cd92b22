"""Models of the transformers library, unmodified, on the simulated device: small, with random weights, in float32.

A forward pass equals that of the CPU bit for bit. So does a training step with the attention "sdpa", which torch_npu
computes by its fused operator. With the attention "eager" torch_npu has its own steps; the tests say which and what
equality is left. A captured graph equals what it captured, in all of them.
"""

import pytest
import torch
from own_steps import pytorchs_own_steps, run_again
from transformers import (
    BertConfig,
    BertForMaskedLM,
    EsmConfig,
    EsmForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

WORDS, TOKENS, CLASSES, IMAGE = 64, 16, 5, 16
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {"vocab_size": WORDS, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SURE = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # the device draws other numbers than the CPU

MODELS = {
    "bert": (BertForMaskedLM, BertConfig(**TEXT, **SIZE, **SURE)),
    "esm": (EsmForMaskedLM, EsmConfig(**TEXT, **SIZE, **SURE, mask_token_id=3, position_embedding_type="rotary")),
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config(
            **TEXT, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
        ),
    ),
    "llama": (LlamaForCausalLM, LlamaConfig(**TEXT, **SIZE, num_key_value_heads=2, use_cache=False)),
    "vit": (ViTForImageClassification, ViTConfig(**SIZE, **SURE, image_size=IMAGE, patch_size=4, num_labels=CLASSES)),
}
each_model = pytest.mark.parametrize("name", MODELS)
each_attention = pytest.mark.parametrize("attention", ["eager", "sdpa"])


def make(name, attention, device):
    torch.manual_seed(0)
    kind, config = MODELS[name]
    config._attn_implementation = attention
    return kind(config).to(device)


def sample(name, attention, seed, device):
    """Arguments of a call with labels, the same on all devices."""
    generator = torch.Generator().manual_seed(seed)
    if name == "vit":
        found = {
            "pixel_values": torch.randn(2, 3, IMAGE, IMAGE, generator=generator),
            "labels": torch.randint(CLASSES, (2,), generator=generator),
        }
    else:
        ids = torch.randint(4, WORDS, (2, TOKENS), generator=generator)
        found = {"input_ids": ids, "labels": ids.clone()}
        if name != "esm":  # it takes a mask of two dimensions or none
            found["attention_mask"] = mask(name, attention, seed)
    return {key: value.to(device) for key, value in found.items()}


def mask(name, attention, seed):
    """Which tokens a token sees, in four dimensions. With a mask of two dimensions or none the models look at values
    (is any token hidden? are these several sequences?) in each forward pass: the host waits for the device, and a
    capture refuses that. A mask of four dimensions is taken as it is.
    """
    seen = torch.ones(2, 1, TOKENS, TOKENS).bool()
    seen[1, ..., TOKENS - 1 - seed :] = False
    if name in ("gpt2", "llama"):
        seen = torch.ones(2, 1, TOKENS, TOKENS).bool().tril()
    # "sdpa" takes what is seen, "eager" what is added to the scores.
    return seen if attention == "sdpa" else torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)


def train_step(model, optimizer, arguments):
    optimizer.zero_grad()
    loss = model(**arguments).loss
    loss.backward()
    optimizer.step()
    return loss.detach()


def trained(name, attention, device, **options):
    """The loss of one step, then the gradients and the parameters after it."""
    model = make(name, attention, device).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, **options)
    found = {"loss": train_step(model, optimizer, sample(name, attention, 0, device))}
    for key, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[f"gradient of {key}"] = parameter.grad
        found[key] = parameter.detach()
    return {key: value.cpu() for key, value in found.items()}


def assert_same(expected, found):
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        assert torch.equal(value, found[key]), (key, (value - found[key]).abs().max())


@each_attention
@each_model
def test_a_forward_pass_is_the_cpus(name, attention):
    with torch.no_grad():
        cpu, npu = (
            make(name, attention, device).eval()(**sample(name, attention, 0, device)) for device in ("cpu", "npu")
        )
    assert npu.logits.device.type == "npu"
    assert torch.equal(cpu.logits, npu.logits.cpu()) and torch.equal(cpu.loss, npu.loss.cpu())


@each_attention
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generated_words_are_the_cpus(name, cache, attention):
    options = {"max_new_tokens": 6, "do_sample": False, "use_cache": True, "cache_implementation": cache}
    cpu, npu = (
        make(name, attention, device).eval().generate(
            sample(name, attention, 0, device)["input_ids"][:, :5],
            attention_mask=torch.ones(2, 5, dtype=torch.long, device=device), **options,
        )
        for device in ("cpu", "npu")
    )  # fmt: skip
    assert cpu.shape == (2, 11) and torch.equal(cpu, npu.cpu())


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@each_model
def test_a_training_step_is_the_cpus(name, options):
    assert_same(*(trained(name, "sdpa", device, **options) for device in ("cpu", "npu")))


@pytorchs_own_steps
@pytest.mark.parametrize("name", [name for name in MODELS if name != "esm"])
def test_a_training_step_with_matmul_by_own_steps_is_the_cpus(name):
    assert_same(*(trained(name, "eager", device) for device in ("cpu", "npu")))


def test_again_with_pytorchs_own_steps():
    run_again(__file__)


@each_model
def test_gradients_with_matmul_are_nearly_the_cpus(name):
    """torch_npu has its own gradient of matmul. And ESM scales and rotates the query before it is multiplied: results
    of torch_npu are contiguous where those of the CPU keep the strides of their operand, and strides choose the order
    in which a product is summed.
    """
    cpu, npu = (trained(name, "eager", device) for device in ("cpu", "npu"))
    assert torch.equal(cpu["loss"], npu["loss"])
    for key in cpu:
        if key.startswith("gradient"):
            torch.testing.assert_close(cpu[key], npu[key], rtol=1e-4, atol=1e-6, msg=key)


WARM_UP = 3


def captured(function):
    """A graph of ``function`` and its result, after a warm-up on a side stream."""
    stream = torch.npu.Stream()
    stream.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(stream):
        for _ in range(WARM_UP):
            function()
    torch.npu.current_stream().wait_stream(stream)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        out = function()
    return graph, out


def refill(static, fresh):
    for key, value in static.items():
        value.copy_(fresh[key])


@each_attention
@each_model
def test_a_captured_forward_pass_is_the_eager_one(name, attention):
    model, static = make(name, attention, "npu").eval(), sample(name, attention, 0, "npu")
    with torch.no_grad():
        graph, out = captured(lambda: model(**static).logits)
        for seed in (1, 2):
            fresh = sample(name, attention, seed, "npu")
            refill(static, fresh)
            graph.replay()
            assert torch.equal(out.cpu(), model(**fresh).logits.cpu())


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 1e-3, capturable=True),
}


@each_attention
@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
@each_model
def test_a_captured_training_step_is_the_eager_one(name, make_optimizer, attention):
    eager, graphed = (make(name, attention, "npu").train() for _ in range(2))
    first, second = (make_optimizer(model.parameters()) for model in (eager, graphed))
    static = sample(name, attention, 0, "npu")
    graph, loss = captured(lambda: train_step(graphed, second, static))
    for _ in range(WARM_UP):
        train_step(eager, first, static)
    for seed in (1, 2):
        fresh = sample(name, attention, seed, "npu")
        refill(static, fresh)
        graph.replay()
        assert torch.equal(loss.cpu(), train_step(eager, first, fresh).cpu())
    assert_same(*({key: x.cpu() for key, x in model.state_dict().items()} for model in (eager, graphed)))


# BERT asks whether any token is hidden, Llama whether the positions are those of several sequences.
HIDDEN_WAITS = {"bert": {"attention_mask": torch.ones(2, TOKENS)}, "llama": {}}


@pytest.mark.parametrize("name, arguments", HIDDEN_WAITS.items(), ids=list(HIDDEN_WAITS))
def test_a_hidden_wait_for_the_device_is_refused_in_a_capture(name, arguments, code_of):
    model, ids = make(name, "sdpa", "npu").eval(), torch.ones(2, TOKENS, dtype=torch.long, device="npu")
    moved = {key: value.npu() for key, value in arguments.items()}
    with torch.no_grad():
        model(ids, **moved)  # eager it is only slow
        graph = torch.npu.NPUGraph()
        with torch.npu.stream(torch.npu.Stream()):
            graph.capture_begin()
            try:
                assert 107027 in code_of(lambda: model(ids, **moved))
            finally:
                graph.capture_end()
    graph.reset()
