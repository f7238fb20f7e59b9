"""GgufCheckpoint: every stored type, transformers' layout, the configuration, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from fixtures import tiny
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM

from ramet.config import rope_frequencies
from ramet.errors import CheckpointError
from ramet.families.weight import Weight
from ramet.weights import gguf_file
from ramet.weights.checkpoint import open_checkpoint
from ramet.weights.gguf import GgufCheckpoint
from ramet.weights.gguf_file import GgufFile
from ramet.weights.load import load

MAKERS = {"gemma3": tiny.gemma3, "llama": tiny.llama, "qwen2": tiny.qwen2, "qwen3": tiny.qwen3}
Bytes = npt.NDArray[np.uint8]


# One block of each quantised type, number by number, as ggml's headers define them


def half(block: Bytes, at: int) -> float:
    return float(block[at : at + 2].view(np.float16)[0])


def q4_0(block: Bytes) -> list[float]:
    low, high = [int(b) & 15 for b in block[2:]], [int(b) >> 4 for b in block[2:]]
    return [half(block, 0) * (q - 8) for q in low + high]


def q4_1(block: Bytes) -> list[float]:
    low, high = [int(b) & 15 for b in block[4:]], [int(b) >> 4 for b in block[4:]]
    return [half(block, 0) * q + half(block, 2) for q in low + high]


def q5_0(block: Bytes) -> list[float]:
    fifth = int(block[2:6].view(np.uint32)[0])
    four = [int(b) & 15 for b in block[6:]] + [int(b) >> 4 for b in block[6:]]
    return [half(block, 0) * ((q | (fifth >> i & 1) << 4) - 16) for i, q in enumerate(four)]


def q8_0(block: Bytes) -> list[float]:
    return [half(block, 0) * int(q) for q in block[2:].view(np.int8)]


def q4_k(block: Bytes) -> list[float]:
    packed = [int(b) for b in block[4:16]]
    scales = [packed[j] & 63 if j < 4 else packed[j + 4] & 15 | packed[j - 4] >> 6 << 4 for j in range(8)]
    minima = [packed[j + 4] & 63 if j < 4 else packed[j + 4] >> 4 | packed[j] >> 6 << 4 for j in range(8)]
    out = []
    for group in range(8):
        quants = block[16 + 32 * (group // 2) :][:32]
        shift = 4 * (group % 2)
        scale, minimum = half(block, 0) * scales[group], half(block, 2) * minima[group]
        out += [scale * (int(q) >> shift & 15) - minimum for q in quants]
    return out


def q6_k(block: Bytes) -> list[float]:
    out = []
    for i in range(256):
        part, rest = divmod(i, 128)
        low = int(block[64 * part + rest % 64]) >> (4 * (rest // 64)) & 15
        high = int(block[128 + 32 * part + rest % 32]) >> (2 * (rest // 32)) & 3
        scale = int(block[192 + i // 16].astype(np.int8))
        out.append(half(block, 208) * scale * ((low | high << 4) - 32))
    return out


QUANTISED: dict[Kind, tuple[Callable[[Bytes], list[float]], tuple[int, ...]]] = {  # the second: where float16s stand
    Kind.Q4_0: (q4_0, (0,)),
    Kind.Q4_1: (q4_1, (0, 2)),
    Kind.Q5_0: (q5_0, (0,)),
    Kind.Q8_0: (q8_0, (0,)),
    Kind.Q4_K: (q4_k, (0, 2)),
    Kind.Q6_K: (q6_k, (208,)),
}


def file_of(path: Path, tensors: dict[str, tuple[npt.NDArray[Any], Kind]], architecture: str = "llama") -> GgufFile:
    writer = gguf.GGUFWriter(path, architecture)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    tiny.finish(writer)
    return GgufFile(path)


def read(file: GgufFile, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    out = torch.full(file.shapes[name], torch.nan, dtype=dtype or file.dtype(name))
    file.read(name, out)
    return out


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_quantised_types(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random blocks: 37 rows, so that the last chunk is a short one, of 2048 numbers."""
    monkeypatch.setattr(gguf_file, "_CHUNK_NUMBERS", 1 << 14)
    size, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(0).integers(0, 256, (37 * 2048 // size, n_bytes), np.uint8)
    reference, halves = QUANTISED[kind]
    for at in halves:
        scales = np.random.default_rng(at).normal(size=len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales[:, None].view(np.uint8)
    file = file_of(tmp_path / "one.gguf", {"t": (blocks.reshape(37, -1), kind)})
    assert file.dtype("t") == torch.float32
    expected = torch.tensor([reference(block) for block in blocks]).view(37, 2048)
    torch.testing.assert_close(read(file, "t"), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(read(file, "t", torch.bfloat16), read(file, "t").to(torch.bfloat16))


@pytest.mark.parametrize(
    ("kind", "dtype"), [(Kind.F32, torch.float32), (Kind.F16, torch.float16), (Kind.BF16, torch.bfloat16)]
)
def test_plain_types(kind: Kind, dtype: torch.dtype, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 5, 64)).astype(np.float32)
    file = file_of(tmp_path / "one.gguf", {"t": (gguf.quants.quantize(values, kind), kind)})
    assert file.shapes == {"t": (3, 5, 64)}
    assert file.dtype("t") == dtype
    assert torch.equal(read(file, "t"), torch.from_numpy(values).to(dtype))


def test_a_type_that_cannot_be_read(tmp_path: Path) -> None:
    n_bytes = gguf.GGML_QUANT_SIZES[Kind.Q8_1][1]
    file = file_of(tmp_path / "one.gguf", {"blk.0.x": (np.zeros((2, n_bytes), np.uint8), Kind.Q8_1)})
    with pytest.raises(CheckpointError, match=r"one\.gguf: blk\.0\.x is stored as Q8_1"):
        read(file, "blk.0.x")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", MAKERS)
def test_f32_equals_safetensors(model_type: str, tied: bool) -> None:
    directory = MAKERS[model_type](tied=tied)
    ours, theirs = open_checkpoint(tiny.gguf_of(directory)), open_checkpoint(directory)
    assert ours.names == theirs.names
    for name in ours.names:
        assert ours.shape(name) == theirs.shape(name)
        exact = model_type != "gemma3" or not name.endswith("norm.weight")  # these are stored with one added
        torch.testing.assert_close(ours.tensor(name), theirs.tensor(name), rtol=0, atol=0 if exact else 2**-23)
    assert ours.config.tie_word_embeddings == tied


@pytest.mark.parametrize("model_type", MAKERS)
def test_q8_0_is_close(model_type: str) -> None:
    directory = MAKERS[model_type]()
    ours, theirs = open_checkpoint(tiny.gguf_of(directory, "Q8_0")), open_checkpoint(directory)
    projections = [name for name in ours.names if name.endswith(("q_proj.weight", "k_proj.weight"))]
    assert len(projections) == 4
    for name in projections:
        a, b = ours.tensor(name).flatten(), theirs.tensor(name).flatten()
        assert not torch.equal(a, b)
        assert torch.cosine_similarity(a, b, dim=0) > 0.999


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("model_type", MAKERS)
def test_logits_through_transformers_own_model(model_type: str, kind: str) -> None:
    """Our tensors in their model against their own: 20 token ids."""
    directory = MAKERS[model_type](tied=False)
    reference, ids = tiny.model(directory), torch.arange(20)[None] * 37
    checkpoint = open_checkpoint(tiny.gguf_of(directory, kind))
    model = type(reference)(checkpoint.config).eval()
    plan = {name: Weight((name,), checkpoint.shape(name)) for name in checkpoint.names}
    model.load_state_dict(load(checkpoint, plan, dtype=torch.float32))
    with torch.no_grad():
        found, expected = model(ids).logits.log_softmax(-1), reference(ids).logits.log_softmax(-1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 if kind == "F32" else 0.5)


@pytest.mark.parametrize("model_type", MAKERS)
def test_the_file_is_what_transformers_reads(model_type: str) -> None:
    """Guards the tests above: the layout that tiny.py writes is the converters'."""
    path, config = tiny.gguf_of(MAKERS[model_type]()), tiny.model(MAKERS[model_type]()).config  # theirs drops head_dim
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, config=config).state_dict()
    checkpoint = open_checkpoint(path)
    for name in checkpoint.names:
        assert torch.equal(checkpoint.tensor(name), theirs[name]), name


@pytest.mark.parametrize("model_type", MAKERS)
def test_the_configuration(model_type: str) -> None:
    directory = MAKERS[model_type]()
    found = open_checkpoint(tiny.gguf_of(directory)).config
    expected = open_checkpoint(directory).config
    assert type(found) is type(expected)
    skipped = {"architectures", "dtype", "initializer_range", "pad_token_id", "rms_norm_eps", "transformers_version"}
    for key, value in expected.to_dict().items():
        assert key in skipped or getattr(found, key) == value, key
    assert np.float32(found.rms_norm_eps) == np.float32(expected.rms_norm_eps)
    for kind in (None,) if model_type != "gemma3" else ("full_attention", "sliding_attention"):
        assert torch.equal(rope_frequencies(found, kind)[0], rope_frequencies(expected, kind)[0])


def test_biases_are_permuted_too(tmp_path: Path) -> None:
    directory = tiny.llama(attention_bias=True)
    with torch.no_grad():
        for name, parameter in (model := tiny.model(directory)).named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    checkpoint = GgufCheckpoint(tiny.gguf_of(directory))
    assert checkpoint.config.attention_bias
    for name, tensor in model.state_dict().items():
        assert name == "lm_head.weight" or torch.equal(checkpoint.tensor(name), tensor), name


def edited(tmp_path: Path, **values: Any) -> Path:
    """The tiny Llama's GGUF with other metadata: None leaves a key out. Tensors only by name."""
    path = tmp_path / "edited.gguf"
    config = tiny.model(tiny.llama()).config
    writer = gguf.GGUFWriter(path, "llama")
    tiny.write_config(writer, config)
    for key, value in values.items():
        name = key.replace("__", ".")
        writer.kv_data[0].pop(name, None)
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        elif value is not None:
            writer.add_uint32(name, value)
    tiny.write_tensor(writer, config, "model.embed_tokens.weight", np.zeros((128, 64), np.float32))
    tiny.write_tensor(writer, config, "model.norm.weight", np.zeros(64, np.float32))
    tiny.finish(writer)
    return path


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"general__architecture": "mamba"}, r"general\.architecture 'mamba'; known are gemma3, llama, qwen2, qwen3"),
        ({"split__count": 3}, "one of 3 parts.*--merge"),
        ({"llama__block_count": None}, r"llama\.block_count is missing"),
        ({"llama__attention__head_count_kv": [2, 1]}, "head_count_kv differs from layer to layer"),
        ({"llama__expert_count": 8}, r"llama\.expert_count is 8, which is not served"),
        ({"llama__attention__sliding_window": 64}, r"attention\.sliding_window is 64"),
        ({"llama__logit_scale": 0.5}, r"llama\.logit_scale is 0\.5"),
        ({"llama__attn_logit_softcapping": 50.0}, r"llama\.attn_logit_softcapping is 50"),
        ({"llama__rope__scaling__yarn_log_multiplier": 0.1}, "yarn_log_multiplier is 0.1"),
        ({"llama__rope__scale_linear": 4.0}, "rope.scale_linear is 4"),
        ({"llama__attention__causal": False}, "attention.causal is 0"),
        ({"llama__what_comes_next": 1}, "llama.what_comes_next is 1"),
        ({"general__type": "adapter"}, "general.type is 'adapter'"),
        ({"llama__attention__value_length": 8}, r"llama\.attention\.value_length is 8, but heads have 16"),
        ({"llama__rope__dimension_count": 8}, r"llama\.rope\.dimension_count is 8"),
        ({"llama__rope__scaling__type": "spiral"}, "unknown llama.rope.scaling.type 'spiral'"),
        ({"llama__rope__scaling__type": "linear"}, r"llama\.rope\.scaling\.factor is missing"),
    ],
)
def test_files_that_are_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"edited\.gguf: .*{message}"):
        GgufCheckpoint(edited(tmp_path, **values))


def test_keys_that_say_nothing_pass(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "llama__expert_count": 0, "llama__attention__causal": True, "llama__rope__scaling__finetuned": True,
        "llama__rope__scaling__type": "none", "general__type": "model", "quantize__imatrix__chunks_count": 7,
    }  # fmt: skip
    assert GgufCheckpoint(edited(tmp_path, **values)).names == GgufCheckpoint(edited(tmp_path)).names


def test_a_factor_without_a_type_is_linear(tmp_path: Path) -> None:
    """llama.cpp takes it so."""
    plain, _ = rope_frequencies(GgufCheckpoint(edited(tmp_path)).config)
    scaled = GgufCheckpoint(edited(tmp_path, llama__rope__scaling__factor=4.0))
    torch.testing.assert_close(rope_frequencies(scaled.config)[0], plain / 4)


def test_rope_scaling(tmp_path: Path) -> None:
    plain, _ = rope_frequencies(GgufCheckpoint(edited(tmp_path)).config)
    linear = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    torch.testing.assert_close(rope_frequencies(GgufCheckpoint(edited(tmp_path, **linear)).config)[0], plain / 4)
    yarn = linear | {"llama__rope__scaling__type": "yarn", "llama__rope__scaling__original_context_length": 1024}
    config = GgufCheckpoint(edited(tmp_path, **yarn)).config
    assert config.rope_parameters["rope_type"] == "yarn"
    assert rope_frequencies(config)[1] > 1


def test_rope_factors_of_the_file(tmp_path: Path) -> None:
    """Llama 3.1's converter writes what each frequency is divided by."""
    config = tiny.model(tiny.llama()).config
    writer = gguf.GGUFWriter(tmp_path / "factors.gguf", "llama")
    tiny.write_config(writer, config)
    tiny.write_tensor(writer, config, "model.embed_tokens.weight", np.zeros((128, 64), np.float32))
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    writer.add_tensor("rope_freqs.weight", factors)
    tiny.finish(writer)
    checkpoint = GgufCheckpoint(tmp_path / "factors.gguf")
    assert checkpoint.names == {"model.embed_tokens.weight"}
    frequencies, scale = rope_frequencies(checkpoint.config)
    torch.testing.assert_close(frequencies, rope_frequencies(config)[0] / torch.from_numpy(factors))
    assert scale == 1.0


def test_a_tensor_that_the_architecture_has_not(tmp_path: Path) -> None:
    values = np.zeros((8, 64), np.float32)
    for name in ("blk.0.attn_q_norm.weight", "blk.0.attn_q.scale", "extra.weight"):
        path = tmp_path / f"{name}.gguf"
        file_of(path, {"token_embd.weight": (values, Kind.F32), name: (values, Kind.F32)})
        with pytest.raises(CheckpointError, match=f"{name} is no tensor of architecture 'llama'"):
            GgufCheckpoint(path)


def test_damaged_files(tmp_path: Path) -> None:
    whole = tiny.gguf_of(tiny.llama()).read_bytes()
    path = tmp_path / "damaged.gguf"
    for size in (0, 3, 10, 30, 1000, 40_000, len(whole) // 2, len(whole) - 4096):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"damaged\.gguf"):
            GgufCheckpoint(path)
    path.write_bytes(b"GGUF\1\0\0\0" + whole[8:])
    with pytest.raises(CheckpointError, match="GGUF version 1"):
        GgufCheckpoint(path)
    path.write_bytes(b"GGML" + whole[4:])
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        GgufCheckpoint(path)


def test_metadata_equals_the_packages_own_reader() -> None:
    path = tiny.gguf_of(tiny.qwen3())
    expected = {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}
    found = GgufFile(path).metadata
    assert set(expected) - set(found) == {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"}
    assert found == {name: expected[name] for name in found}


def test_smollm2s_tensors_equal_the_packages_own_reading() -> None:
    checkpoint = open_checkpoint("smollm2")
    file = checkpoint._file  # type: ignore[attr-defined]
    for reference in [t for t in gguf.GGUFReader(file.path).tensors if t.name.startswith(("blk.29.", "output"))]:
        expected = torch.from_numpy(gguf.quants.dequantize(np.array(reference.data), reference.tensor_type))
        assert torch.equal(read(file, reference.name), expected.view(file.shapes[reference.name]))
    assert checkpoint.config.tie_word_embeddings
    assert len(checkpoint.names) == 272
    assert (checkpoint.name, checkpoint.model_type) == ("smollm2", "llama")
