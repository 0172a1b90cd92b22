"""helpers.models: Nucleotide Transformer is ESM of the transformers library, and its tokens are six letters of DNA."""

import helpers
from helpers import bench
from helpers.models import (
    CheckpointError,
    DnaTokenizer,
    NucleotideTransformer,
    TokenError,
    load,
    nucleotide_transformer,
)

import pytest
import torch
from model_checks import exact, on_device, same, waits, waits_that_torch_npu_sees, weights
from transformers import EsmConfig, EsmForMaskedLM, EsmTokenizer

MASK, PAD = 2, 1
SMALL = dict(vocab=13, width=16, layers=2, heads=4, inner=64, length=12)
# nucleotide-transformer-500m-human-ref, as its config.json has it
PUBLISHED = dict(
    vocab_size=4105,
    hidden_size=1280,
    num_hidden_layers=24,
    num_attention_heads=20,
    intermediate_size=5120,
    max_position_embeddings=1002,
)


def esm(**sizes):
    config = EsmConfig(
        **sizes,
        position_embedding_type="absolute",
        token_dropout=True,
        emb_layer_norm_before=False,
        layer_norm_eps=1e-12,
        pad_token_id=PAD,
        mask_token_id=MASK,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    return EsmForMaskedLM(config).eval()


@pytest.fixture
def reference():
    torch.manual_seed(0)
    return esm(
        vocab_size=13,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=12,
    )


def masked_and_padded():
    ids = torch.randint(3, 13, (2, 10), generator=torch.Generator().manual_seed(1))
    ids[0, 2] = ids[0, 5] = ids[1, 3] = MASK
    ids[1, 7:] = PAD
    return ids, ids != PAD


def test_the_full_size_is_the_published_one():
    with torch.device("meta"):
        model, reference = NucleotideTransformer(), esm(**PUBLISHED)
    assert sum(p.numel() for p in model.parameters()) == 485_699_306
    shapes = [{name: x.shape for name, x in m.state_dict().items()} for m in (model, reference)]
    assert shapes[0] == shapes[1]
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in reference.named_parameters()]


def test_equal_to_transformers_bit_for_bit(reference):
    model = NucleotideTransformer(**SMALL).eval()
    model.load_state_dict(reference.state_dict())
    ids, mask = masked_and_padded()
    with torch.no_grad():
        assert torch.equal(model(ids, mask), reference(ids, attention_mask=mask.long()).logits)


def test_the_fused_gelu_is_the_same_function():
    written, fused = (NucleotideTransformer(**SMALL, fused_gelu=fused).eval() for fused in (False, True))
    fused.load_state_dict(written.state_dict())
    with torch.no_grad():
        difference = (written(*masked_and_padded()) - fused(*masked_and_padded())).abs().max()
    assert 0 < difference < 1e-5


@exact
@pytest.mark.parametrize("fused_gelu", [False, True])
def test_the_device_gives_what_the_cpu_gives_and_a_replay_too(fused_gelu, capfd):
    model = nucleotide_transformer(40, layers=2, vocab=13, length=12, fused_gelu=fused_gelu)
    inputs = masked_and_padded()
    with torch.no_grad():
        on_cpu = model(*inputs)
        assert waits(model, inputs) == 0
        model.to("npu")
        assert same(model(*on_device(inputs)), on_cpu)
    assert waits_that_torch_npu_sees(model, inputs, capfd) == 0
    captured = helpers.capture(model, *model.inputs(2, 10, seed=1))
    assert same(captured(*inputs), on_cpu)


@exact
def test_a_fused_gelu_saves_four_kernels_each_time():
    counts = []
    for fused_gelu in (False, True):
        model = nucleotide_transformer(40, layers=3, vocab=13, length=12, fused_gelu=fused_gelu).to("npu")
        inputs = on_device(model.inputs(1, 8))
        with torch.no_grad():
            counts.append(bench.kernel_times(lambda: model(*inputs))[0])  # noqa: B023
    assert counts[0] - counts[1] == 4 * (3 + 1)


def test_sizes_and_seeds():
    a, b, c = (nucleotide_transformer(40, 1, vocab=13, length=12, seed=seed) for seed in (1, 1, 2))
    assert same(weights(a), weights(b)) and not same(weights(a), weights(c))
    assert same(a.inputs(2, 10), a.inputs(2, 10)) and not same(a.inputs(2, 10), a.inputs(2, 10, seed=1))
    with pytest.raises(ValueError, match="11 tokens, but the model has 10 positions"):
        a.inputs(1, 11)
    with pytest.raises(ValueError, match="width 10 is not a multiple of 4 heads"):
        nucleotide_transformer(10)


# ---- the published file: the state_dict itself, saved before transformers dropped position_ids


def published(reference):
    return reference.state_dict() | {"esm.embeddings.position_ids": torch.arange(12)[None]}


def test_a_file_of_the_published_layout_loads(tmp_path, reference):
    torch.save(published(reference), tmp_path / "pytorch_model.bin")
    load(model := NucleotideTransformer(**SMALL), tmp_path / "pytorch_model.bin")
    assert same(weights(model), weights(reference))


HEAD = "lm_head.decoder.weight"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda file: file.pop(HEAD), f"{HEAD} is missing (1 missing keys)"),
        (lambda file: file.update({HEAD: torch.zeros(8, 9)}), f"{HEAD} is (8, 9), expected (13, 16)"),
        (lambda file: file.update({"esm.pooler": torch.zeros(1)}), "unexpected key esm.pooler (1 unexpected keys)"),
    ],
)
def test_a_file_that_does_not_fit_is_named_and_changes_nothing(tmp_path, reference, change, says):
    model, path = NucleotideTransformer(**SMALL), tmp_path / "pytorch_model.bin"
    before, file = weights(model), published(reference)
    change(file)
    torch.save(file, path)
    with pytest.raises(CheckpointError) as caught:
        load(model, path)
    assert str(caught.value) == f"{path}: {says}"
    assert same(weights(model), before)


@pytest.mark.parametrize("content", [torch.zeros(3), [1, 2], {}])
def test_a_file_without_names_is_named(tmp_path, content):
    torch.save(content, tmp_path / "wrong.bin")
    with pytest.raises(CheckpointError, match="no weights by name|esm.embeddings.word_embeddings.weight is missing"):
        load(NucleotideTransformer(**SMALL), tmp_path / "wrong.bin")


# ---- DNA


def test_the_tokens_are_those_of_transformers(tmp_path):
    tokenizer = DnaTokenizer()
    (tmp_path / "vocab.txt").write_text("\n".join(tokenizer.tokens))
    reference = EsmTokenizer(str(tmp_path / "vocab.txt"), eos_token=None)
    for dna in ("ATTCCGATTCCGATTCCG", "ATTTCTCTCTCTCTCTGAGATCGATCGATCGAT", "ACGTGTACNTGCACGGANCGACTAGTCTGA", "ACG"):
        ids, mask = tokenizer.encode([dna], 20)
        assert ids[0, mask[0]].tolist() == reference(dna)["input_ids"]
        assert tokenizer.decode(ids) == [dna]


def test_six_letters_are_one_token():
    tokenizer = DnaTokenizer()
    assert (len(tokenizer), tokenizer.tokens[4], tokenizer.tokens[-1]) == (4105, "AAAAAA", "N")
    # the example of InstaDeep's documentation
    assert tokenizer.split("ACGTGTACNTGCACGGANCGACTAGTCTGA") == [
        *("ACGTGT", "A", "C", "N", "TGCACG", "G", "A", "N", "CGACTA", "GTCTGA")
    ]


@pytest.mark.parametrize(
    ("dna", "says"),
    [
        ("ACGTGTU", "DNA 'ACGTGTU': unknown token 'U' at position 6"),
        ("acgt", "unknown token 'a' at position 0"),
        ("ACGTGT" * 4, "4 tokens and 1 end do not fit into 4"),
    ],
)
def test_letters_that_are_no_dna_are_named(dna, says):
    with pytest.raises(TokenError, match=says):
        DnaTokenizer().encode(["ACGTGT", dna], 4)
