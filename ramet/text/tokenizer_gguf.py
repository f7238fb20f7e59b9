"""The tokenizer that a GGUF file's metadata describes: byte-level BPE, or SentencePiece's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from ramet.errors import CheckpointError
from ramet.foreign import Fields
from ramet.quoting import shown
from ramet.text.library import library_errors
from ramet.text.pre_tokenizer import PreTokenizer
from ramet.text.tokenizer import Tokenizer
from ramet.text.tokenizer_spm import spm_tokenizer

_CONTROL, _USER_DEFINED = 3, 4  # of gguf.TokenType; both are matched whole, the first is special


def gguf_tokenizer(
    metadata: Mapping[str, Any], where: str, known: Mapping[str, PreTokenizer] = MappingProxyType({})
) -> Tokenizer:
    """Build the tokenizer from the keys below `tokenizer.ggml`. `where` names the file in errors. `known`: the
    pre-tokenizers by their names in `tokenizer.ggml.pre`. Raises CheckpointError."""
    fields = Fields(metadata, where)
    tokens = fields.texts("tokenizer.ggml.tokens")
    if not tokens or len(set(tokens)) != len(tokens):
        raise CheckpointError(f"{where}: tokenizer.ggml.tokens is missing or lists a token twice; convert it again")
    with library_errors(f"{where}: tokenizer.ggml"):
        return _built(fields, tokens, known)


def _built(fields: Fields, tokens: list[str], known: Mapping[str, PreTokenizer]) -> Tokenizer:
    ids = {
        name: fields.whole(f"tokenizer.ggml.{name}_token_id", most=len(tokens) - 1)
        for name in ("bos", "eos", "unknown", "padding", "eot", "eom")
    }
    if fields.get("tokenizer.ggml.model") == "llama":
        full, tokens = spm_tokenizer(fields, fields.where)
        adds_bos = True
    else:
        pre = _pre(fields, known)
        full = _byte_level(tokens, fields.texts("tokenizer.ggml.merges"), pre, fields.where)
        adds_bos = pre.adds_bos
        types = fields.wholes("tokenizer.ggml.token_type")
        if types and len(types) != len(tokens):
            raise fields.wrong("tokenizer.ggml.token_type", f"a list of a number for each of {len(tokens)} tokens")
        full.add_tokens(_added(tokens, types))
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    specials = {names[name]: tokens[i] for name, i in ids.items() if i is not None and name in names}
    added = fields.flag("tokenizer.ggml.add_bos_token")
    begins = adds_bos if added is None else added
    stop_ids = tuple(dict.fromkeys(i for name in ("eos", "eot", "eom") if (i := ids[name]) is not None))
    return Tokenizer(full, bos=ids["bos"] if begins else None, stop_ids=stop_ids, specials=specials)


def _pre(fields: Fields, known: Mapping[str, PreTokenizer]) -> PreTokenizer:
    model = fields.get("tokenizer.ggml.model")
    name = fields.text("tokenizer.ggml.pre")
    remedy = "use the model's safetensors directory, which holds its tokenizer.json"
    if model != "gpt2":
        raise CheckpointError(
            f"{fields.where}: tokenizer.ggml.model is {shown(model)}; of GGUF files byte-level BPE ('gpt2') and "
            f"SentencePiece's ('llama') are read; {remedy}"
        )
    if name is None or name not in known:
        names = ", ".join(known)
        raise CheckpointError(f"{fields.where}: unknown tokenizer.ggml.pre {shown(name)}; known are {names}; {remedy}")
    return known[name]


def _byte_level(tokens: list[str], merges: list[str], pre: PreTokenizer, where: str) -> tokenizers.Tokenizer:
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
