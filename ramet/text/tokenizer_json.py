"""The tokenizer of a checkpoint directory: tokenizer.json, with what tokenizer_config.json says about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from ramet.config import read_json
from ramet.errors import CheckpointError
from ramet.text.tokenizer import Tokenizer

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_tokenizer(directory: Path, eos: Iterable[int] = ()) -> Tokenizer:
    """The tokenizer of a directory. `eos` are further ids that end a text, from the model's own configuration.

    BOS is due where the file's post-processor writes one: transformers, too, leaves `add_bos_token` aside then.
    Raises CheckpointError.
    """
    path = directory / "tokenizer.json"
    settings = read_json(directory / "special_tokens_map.json") | read_json(directory / "tokenizer_config.json")
    full = _read(path)
    _add_missing(full, settings.get("added_tokens_decoder") or {}, path)
    specials = {name: text for name in _NAMED if (text := _text(settings.get(name))) is not None}
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


def _add_missing(full: tokenizers.Tokenizer, decoder: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Add the tokens that older checkpoints name in tokenizer_config.json alone."""
    present = {token.content for token in full.get_added_tokens_decoder().values()}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for number, entry in sorted(decoder.items(), key=lambda item: int(item[0])):
        if entry["content"] in present:
            continue
        full.add_tokens([tokenizers.AddedToken(entry["content"], **{f: entry[f] for f in flags if f in entry})])
        if (found := full.token_to_id(entry["content"])) != int(number):
            text = repr(entry["content"])
            raise CheckpointError(f"{path}: {text} has the id {found}, but tokenizer_config.json gives it {number}")


def _bos(full: tokenizers.Tokenizer) -> int | None:
    with_specials = full.encode("a", add_special_tokens=True).ids
    plain = full.encode("a", add_special_tokens=False).ids
    return with_specials[0] if with_specials[:1] != plain[:1] else None
