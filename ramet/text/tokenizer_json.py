"""The tokenizer of a checkpoint directory: tokenizer.json, with what tokenizer_config.json says about it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from ramet.config import read_json
from ramet.errors import CheckpointError
from ramet.text.tokenizer import Tokenizer

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_STRIPS = ("single_word", "lstrip", "rstrip")  # these decide where a token is found in a text
_FLAGS = (*_STRIPS, "normalized", "special")
_PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")  # transformers' that take tokenizer.json as it is


def read_tokenizer(directory: Path, eos: Iterable[int] = ()) -> Tokenizer:
    """The tokenizer of a directory. `eos` are further ids that end a text, from the model's own configuration.

    BOS is due where the file's post-processor writes one: transformers, too, leaves `add_bos_token` aside then.
    Raises CheckpointError.
    """
    path = directory / "tokenizer.json"
    settings = read_json(directory / "special_tokens_map.json") | read_json(directory / "tokenizer_config.json")
    full = _read(path)
    specials = {name: text for name in _NAMED if (text := _text(settings.get(name))) is not None}
    _add_configured(full, settings, frozenset(specials.values()), path)
    extra = settings.get("extra_special_tokens")
    if isinstance(extra, Mapping):
        specials |= {name: text for name, value in extra.items() if (text := _text(value)) is not None}
    last = full.token_to_id(specials.get("eos_token", ""))
    found = dict.fromkeys([*([] if last is None else [last]), *eos])
    return Tokenizer(full, bos=_bos(full), eos=tuple(found), specials=specials)


def read_template(directory: Path) -> str | None:
    """The chat template: chat_template.jinja, else the one (named "default") in tokenizer_config.json, else None."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = read_json(directory / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    return found if found is None else str(found)


def _read(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise CheckpointError(
            f"{path} is missing; write it with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(f"{path} is not a tokenizer that the tokenizers library reads: {error}") from error


def _text(value: Any) -> str | None:
    return value.get("content") if isinstance(value, Mapping) else value


def _add_configured(
    full: tokenizers.Tokenizer, settings: Mapping[str, Any], named: Collection[str], path: Path
) -> None:
    """Add the tokens that older checkpoints name in tokenizer_config.json alone; where it describes one of
    tokenizer.json otherwise, it holds, as with transformers. `named` ones, such as eos_token, are special."""
    present = {token.content: token for token in full.get_added_tokens_decoder().values()}
    decoder: Mapping[str, Mapping[str, Any]] = settings.get("added_tokens_decoder") or {}
    entries = sorted(decoder.items(), key=lambda item: int(item[0]))
    tokens = [AddedToken(entry["content"], **{f: entry[f] for f in _FLAGS if f in entry}) for _, entry in entries]
    others = [token for token in tokens if repr(token) != repr(present.get(token.content))]
    for token in others:
        if token.content in present and settings.get("tokenizer_class") not in _PLAIN_CLASSES:
            _check_strips(present[token.content], token, path)
        token.special = token.special or token.content in named
    full.add_tokens(others)
    for (number, _), token in zip(entries, tokens, strict=True):
        if (found := full.token_to_id(token.content)) != int(number):
            text = repr(token.content)
            raise CheckpointError(f"{path}: {text} has the id {found}, but tokenizer_config.json gives it {number}")


def _check_strips(token: AddedToken, other: AddedToken, path: Path) -> None:
    """Which of two files holds depends on the class, but for the plain ones."""
    if differing := [flag for flag in _STRIPS if getattr(token, flag) != getattr(other, flag)]:
        raise CheckpointError(
            f"{path}: {token.content!r} has another {' and '.join(differing)} than in tokenizer_config.json: make both "
            "files alike"
        )


def _bos(full: tokenizers.Tokenizer) -> int | None:
    with_specials = full.encode("a", add_special_tokens=True).ids
    plain = full.encode("a", add_special_tokens=False).ids
    return with_specials[0] if with_specials[:1] != plain[:1] else None
