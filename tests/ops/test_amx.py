"""Products by AMX, whose operations on tiles are emulated here: what they sum, and what a row's bits depend on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from fixtures.draws import random_sampling, same

from ramet.ops import backends
from ramet.ops.experts.native import NativeExperts
from ramet.ops.head.native import NativeHead
from ramet.ops.head.reference import capped, part_of, sampled
from ramet.ops.linear.native import NativeLinear, NativeProducts
from ramet.ops.native import Library, build, library, loader
from tests.ops.test_experts import inputs, plain, weights
from tests.ops.test_native import check_all, small_stream

EMULATED = ("-O1", *build.FLAGS[1:], "-DRAMET_EMULATE_AMX")
TOLERANCE = 1e-2


@pytest.fixture(scope="module")
def amx() -> Library:
    found = library()
    if found is None or found.isa not in ("avx512-bf16", "amx-bf16"):
        pytest.skip("the emulation needs AVX512-BF16")
    return loader.load(EMULATED)


@pytest.fixture(autouse=True)
def emulated(amx: Library, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(backends, "library", lambda: amx)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)  # torch.empty is NaN
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def product(amx: Library, n: int, k: int) -> tuple[NativeLinear, torch.Tensor]:
    weight = torch.randn(n, k).mul(k**-0.5).bfloat16()
    return NativeProducts(amx).pack(weight), weight


def test_it_says_what_it_is(amx: Library) -> None:
    assert amx.isa == "amx-bf16"


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 31, 33, 70, 300])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (16, 31), (17, 33), (33, 64), (130, 514), (70, 1100)])
def test_sums(amx: Library, rows: int, n: int, k: int) -> None:
    """Tiles that are whole and parts of them, in every dimension; few rows and many."""
    packed, weight = product(amx, n, k)
    x, residual = torch.randn(rows, k).bfloat16(), torch.randn(rows, n)
    expected = x.double() @ weight.double().T
    torch.testing.assert_close(packed(x).double(), expected, rtol=TOLERANCE, atol=TOLERANCE)
    total = packed.add(x, residual).double()
    torch.testing.assert_close(total, expected + residual.double(), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(("n", "k"), [(40, 200), (300, 1090)])
def test_a_rows_bits_are_its_own(amx: Library, n: int, k: int) -> None:
    packed, _ = product(amx, n, k)
    x = torch.randn(400, k).bfloat16()
    together = packed(x)
    for rows in ([0], [399], [3, 5, 200], [*range(100, 117)], [*range(50, 290)], [*range(399, -1, -1)]):
        assert torch.equal(packed(x[rows]), together[rows])
    torch.set_num_threads(1)
    assert torch.equal(packed(x), together)


def test_zeros_behind_a_sum_change_no_bit(amx: Library) -> None:
    """What attention relies on: how many keys a product takes depends on who shares the round."""
    weight, x = torch.randn(32, 128).bfloat16(), torch.randn(9, 128).bfloat16()
    x[:, 50:] = 0
    pack = NativeProducts(amx).pack
    expected = pack(weight)(x)
    for k in (50, 64, 66, 96):
        assert torch.equal(pack(weight[:, :k])(x[:, :k]), expected)


@pytest.mark.parametrize("sizes", [(8, 40, 96), (3, 41, 63), (1, 1, 1), (5, 130, 600)], ids=str)
@pytest.mark.parametrize("n_rows", [0, 1, 7, 65, 300])
def test_experts(amx: Library, sizes: tuple[int, int, int], n_rows: int) -> None:
    made, given = weights(*sizes, torch.bfloat16), inputs(n_rows, sizes[0], 3, sizes[2], torch.bfloat16)
    packed = NativeExperts(amx).pack(*made, "gelu_tanh")
    found, some = packed(*given), slice(None, None, 7)
    torch.testing.assert_close(
        found[some].double(), plain(*(x[some] for x in given), *made, "gelu_tanh"), rtol=2e-2, atol=2e-2
    )
    for rows in ([0], [6, 2], [*range(20, 60)], [*range(n_rows - 1, -1, -1)]):
        if max(rows, default=n_rows) < n_rows:
            assert torch.equal(packed(*(x[rows] for x in given)), found[rows])


@pytest.mark.parametrize("n_rows", [1, 16, 33])
@pytest.mark.parametrize("width", [34, 63, 200])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_the_vocabulary(amx: Library, n_rows: int, width: int, softcap: float) -> None:
    """Of an odd width too, whose rows no tile can take as they lie."""
    hidden, weight = torch.randn(n_rows, width).bfloat16(), torch.randn(2051, width).bfloat16()
    logsumexp = NativeHead(amx).logsumexp
    found = logsumexp(hidden, weight, softcap)
    logits = hidden.double() @ weight.double().T
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    torch.testing.assert_close(found.double(), logits.logsumexp(-1), rtol=1e-5, atol=1e-4)
    for rows in ([0], [n_rows - 1, 0], [*range(n_rows // 2, n_rows)]):
        assert torch.equal(logsumexp(hidden[rows], weight, softcap), found[rows])


@pytest.mark.parametrize("n_rows", [1, 17, 70])
@pytest.mark.parametrize("width", [66, 63])
@pytest.mark.parametrize("softcap", [0.0, 9.0])
def test_drawing(amx: Library, n_rows: int, width: int, softcap: float) -> None:
    how, rows = random_sampling(np.random.default_rng(n_rows), n_rows), torch.arange(n_rows)
    hidden, weight = (torch.randn(n_rows, width) / 8).bfloat16(), torch.randn(2051, width).bfloat16()
    head = NativeHead(amx)
    found = head.sample(hidden, rows, head.prepare(weight), how, excluded=2050, softcap=softcap)
    logits = capped(hidden.double() @ weight.double().T, softcap)
    tokens, *rest = sampled(logits, how, 2050)
    kept = found.tokens == tokens
    assert int(kept.sum()) >= n_rows - 1  # a number may fall within rounding of an edge
    for a, b in zip((found.logprobs, found.entropy), rest, strict=True):
        torch.testing.assert_close(a[kept].double(), b[kept], rtol=1e-5, atol=1e-4)
    for which in (np.arange(1), np.arange(n_rows - 1, n_rows // 2, -1)):
        some = head.sample(
            hidden, rows[which], head.prepare(weight), part_of(how, which), excluded=2050, softcap=softcap
        )
        assert same(some, found, which)


def test_what_else_multiplies() -> None:
    """Attention and the head, through the functions that layers call."""
    torch.use_deterministic_algorithms(False)
    check_all(small_stream())
