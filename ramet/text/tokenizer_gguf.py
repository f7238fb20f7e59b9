"""The tokenizer that a GGUF file's metadata describes: byte-level BPE, or SentencePiece's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from ramet.errors import CheckpointError
from ramet.text.tokenizer import Tokenizer
from ramet.text.tokenizer_spm import spm_tokenizer

_CONTROL, _USER_DEFINED = 3, 4  # of gguf.TokenType; both are matched whole, the first is special

_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _REST
_QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _REST


@dataclass(frozen=True)
class _Pre:
    """What `tokenizer.ggml.pre` stands for. `split` None is GPT-2's own split into words.

    These are the steps of the models' tokenizer.json: the name is all that GGUF keeps of them.
    """

    split: str | None = None
    digits: bool = False  # each digit by itself, before the split
    whole_words: bool = False  # a word that is an entry is taken whole, whatever the merges say
    nfc: bool = False
    adds_bos: bool = False  # where the file has no add_bos_token


_LLAMA_BPE = _Pre(split=_LLAMA3, whole_words=True, adds_bos=True)
_KNOWN = {
    "gpt-2": _Pre(),
    "smollm": _Pre(digits=True),
    "starcoder": _Pre(digits=True),
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "qwen2": _Pre(split=_QWEN2, nfc=True),
    "deepseek-r1-qwen": _Pre(split=_QWEN2, nfc=True),
}


def gguf_tokenizer(metadata: Mapping[str, Any], where: str) -> Tokenizer:
    """Build it from the keys below `tokenizer.ggml`. `where` names the file in errors. Raises CheckpointError."""
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])
    if not tokens or len(set(tokens)) != len(tokens):
        raise CheckpointError(f"{where}: tokenizer.ggml.tokens is missing or lists a token twice; convert it again")
    if metadata.get("tokenizer.ggml.model") == "llama":
        full, tokens = spm_tokenizer(metadata, where)
        adds_bos = True
    else:
        pre = _pre(metadata, where)
        full, adds_bos = _byte_level(tokens, metadata.get("tokenizer.ggml.merges", []), pre, where), pre.adds_bos
        full.add_tokens(_added(tokens, metadata.get("tokenizer.ggml.token_type", [])))
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "unknown", "padding")}
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    specials = {names[name]: tokens[i] for name, i in ids.items() if i is not None}
    ends = [ids["eos"], *(metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eot", "eom"))]
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", adds_bos)
    eos = tuple(dict.fromkeys(i for i in ends if i is not None))
    return Tokenizer(full, bos=ids["bos"] if adds_bos else None, eos=eos, specials=specials)


def _pre(metadata: Mapping[str, Any], where: str) -> _Pre:
    model, name = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    remedy = "use the model's safetensors directory, which holds its tokenizer.json"
    if model != "gpt2":
        raise CheckpointError(
            f"{where}: tokenizer.ggml.model is {model!r}; of GGUF files byte-level BPE ('gpt2') and SentencePiece's "
            f"('llama') are read; {remedy}"
        )
    if name not in _KNOWN:
        known = ", ".join(_KNOWN)
        raise CheckpointError(f"{where}: unknown tokenizer.ggml.pre {name!r}; known are {known}; {remedy}")
    return _KNOWN[name]


def _byte_level(tokens: list[str], merges: list[str], pre: _Pre, where: str) -> tokenizers.Tokenizer:
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        full = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre.whole_words))
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(f"{where}: tokenizer.ggml.merges do not fit the vocabulary: {error}") from error
    steps: list[pre_tokenizers.PreTokenizer] = []
    if pre.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.split is not None:
        steps.append(pre_tokenizers.Split(Regex(pre.split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.split is None))
    full.pre_tokenizer = pre_tokenizers.Sequence(steps)
    full.decoder = decoders.ByteLevel()
    if pre.nfc:
        full.normalizer = normalizers.NFC()
    return full


def _added(tokens: list[str], types: list[int]) -> list[AddedToken]:
    return [
        AddedToken(token, normalized=False, special=kind == _CONTROL)
        for token, kind in zip(tokens, types, strict=False)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
