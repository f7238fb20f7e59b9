"""A SentencePiece vocabulary of a GGUF file (`tokenizer.ggml.model` "llama") as byte-pair merges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from ramet.errors import CheckpointError
from ramet.foreign import Fields
from ramet.quoting import shown

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # of gguf.TokenType
_SPACE = "▁"
_MOST_PIECE = 512  # letters: every way to cut each is looked at


def spm_tokenizer(metadata: Mapping[str, Any], where: str) -> tuple[tokenizers.Tokenizer, list[str]]:
    """The tokenizer, and its vocabulary as it spells pieces. `where` names the file. Raises CheckpointError.

    SentencePiece (Kudo and Richardson 2018) joins the two neighbours whose piece has the highest score, the leftmost of
    equal ones. The merges are all ways to cut a piece in two, the highest score first; transformers derives the same.
    """
    fields = Fields(metadata, where)
    tokens, types = fields.texts("tokenizer.ggml.tokens"), fields.wholes("tokenizer.ggml.token_type")
    scores = fields.reals("tokenizer.ggml.scores")
    unknown = fields.whole("tokenizer.ggml.unknown_token_id", most=len(tokens) - 1) or 0
    if not len(tokens) == len(types) == len(scores):
        raise CheckpointError(f"{where}: tokenizer.ggml.scores or token_type do not fit its tokens; convert it again")
    if len(longest := max(tokens, key=len, default="")) > _MOST_PIECE:
        raise CheckpointError(
            f"{where}: tokenizer.ggml.tokens has one of {len(longest)} letters, {shown(longest)}; pieces have up "
            f"to {_MOST_PIECE}"
        )
    tokens = [_spelled(token) for token in tokens]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = list(_merges(vocabulary, [tokens[i] for i in _order(types, scores)]))
    full = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True)
    )
    spaces = normalizers.Replace(" ", _SPACE)
    steps: list[decoders.Decoder] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if fields.flag("tokenizer.ggml.add_space_prefix") is not False:
        full.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        full.normalizer = spaces
    full.decoder = decoders.Sequence(steps)
    full.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind != _USER_DEFINED)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) and token.strip(_SPACE)  # runs of spaces come of merges
        ]
    )
    return full, tokens


def _spelled(token: str) -> str:
    """A piece as SentencePiece spells it: converters write runs of spaces as spaces."""
    return token.replace(" ", _SPACE) if token.isspace() else token


def _order(types: Sequence[int], scores: Sequence[float]) -> list[int]:
    """The ids of the pieces into which characters may be joined, the preferred ones first. User-defined pieces, whose
    scores mean nothing, come before all others and are taken whole."""
    pieces = [i for i, kind in enumerate(types) if kind in (_NORMAL, _USER_DEFINED)]
    return sorted(pieces, key=lambda i: (types[i] == _NORMAL, -scores[i] if types[i] == _NORMAL else 0.0))


def _merges(vocabulary: Mapping[str, int], pieces: Sequence[str]) -> Iterator[tuple[str, str]]:
    for piece in pieces:
        for cut in range(len(piece) - 1, 0, -1):
            if (left := piece[:cut]) in vocabulary and (right := piece[cut:]) in vocabulary:
                yield left, right
