"""The tokenizer that a GGUF file's metadata describes: byte-level BPE, or SentencePiece's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from ramet.errors import CheckpointError
from ramet.foreign import Fields
from ramet.quoting import shown
from ramet.text.library import library_errors
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
    told = Fields(metadata, where)
    tokens = told.texts("tokenizer.ggml.tokens")
    if not tokens or len(set(tokens)) != len(tokens):
        raise CheckpointError(f"{where}: tokenizer.ggml.tokens is missing or lists a token twice; convert it again")
    with library_errors(f"{where}: tokenizer.ggml"):
        return _built(told, tokens)


def _built(told: Fields, tokens: list[str]) -> Tokenizer:
    ids = {
        name: told.whole(f"tokenizer.ggml.{name}_token_id", most=len(tokens) - 1)
        for name in ("bos", "eos", "unknown", "padding", "eot", "eom")
    }
    if told.get("tokenizer.ggml.model") == "llama":
        full, tokens = spm_tokenizer(told, told.where)
        adds_bos = True
    else:
        pre = _pre(told)
        full, adds_bos = _byte_level(tokens, told.texts("tokenizer.ggml.merges"), pre, told.where), pre.adds_bos
        types = told.wholes("tokenizer.ggml.token_type")
        if types and len(types) != len(tokens):
            raise told.wrong("tokenizer.ggml.token_type", f"a list of a number for each of {len(tokens)} tokens")
        full.add_tokens(_added(tokens, types))
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    specials = {names[name]: tokens[i] for name, i in ids.items() if i is not None and name in names}
    added = told.flag("tokenizer.ggml.add_bos_token")
    begins = adds_bos if added is None else added
    stop_ids = tuple(dict.fromkeys(i for name in ("eos", "eot", "eom") if (i := ids[name]) is not None))
    return Tokenizer(full, bos=ids["bos"] if begins else None, stop_ids=stop_ids, specials=specials)


def _pre(told: Fields) -> _Pre:
    model, name = told.get("tokenizer.ggml.model"), told.text("tokenizer.ggml.pre")
    remedy = "use the model's safetensors directory, which holds its tokenizer.json"
    if model != "gpt2":
        raise CheckpointError(
            f"{told.where}: tokenizer.ggml.model is {shown(model)}; of GGUF files byte-level BPE ('gpt2') and "
            f"SentencePiece's ('llama') are read; {remedy}"
        )
    if name is None or name not in _KNOWN:
        known = ", ".join(_KNOWN)
        raise CheckpointError(f"{told.where}: unknown tokenizer.ggml.pre {shown(name)}; known are {known}; {remedy}")
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
