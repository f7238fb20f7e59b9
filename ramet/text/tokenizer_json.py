"""The tokenizer of a checkpoint directory: tokenizer.json, with the settings of tokenizer_config.json."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import tokenizers
from tokenizers import AddedToken

from ramet.errors import CheckpointError
from ramet.foreign import MOST_INT32, Fields, json_object, read_bytes, read_json, read_text
from ramet.quoting import shown
from ramet.text.library import library_errors
from ramet.text.tokenizer import Tokenizer

_MOST = 1 << 26  # bytes of tokenizer.json; the largest published ones have half of it
MOST_TEMPLATE = 1 << 20  # letters of a chat template
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_STRIPS = ("single_word", "lstrip", "rstrip")  # these decide where a token is found in a text
_FLAGS = (*_STRIPS, "normalized", "special")
_PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")  # transformers' that take tokenizer.json as it is


def read_tokenizer(directory: Path, stop_ids: Iterable[int] = ()) -> Tokenizer:
    """The tokenizer of a directory. `stop_ids` are further ids that end a text, from the model's own configuration.

    A prompt begins with BOS where the file's post-processor writes one: transformers, too, ignores `add_bos_token`
    then. Raises CheckpointError.
    """
    path = directory / "tokenizer.json"
    config = _settings(directory)
    full = _read(path)
    specials = {name: text for name in _NAMED if (text := _text(config, name)) is not None}
    with library_errors(f"{path} or {config.where}"):
        _add_configured(full, config, frozenset(specials.values()), path)
        if isinstance(config.get("extra_special_tokens"), Mapping):
            extra = config.inner("extra_special_tokens")
            specials |= {name: text for name in extra if (text := _text(extra, name)) is not None}
        last = full.token_to_id(specials.get("eos_token", ""))
        found = dict.fromkeys([*([] if last is None else [last]), *stop_ids])
        return Tokenizer(full, bos=_bos(full), stop_ids=tuple(found), specials=specials)


def read_template(directory: Path) -> str | None:
    """The chat template: chat_template.jinja, else that in tokenizer_config.json ("default"). Raises
    CheckpointError."""
    with contextlib.suppress(FileNotFoundError):
        return read_text(directory / "chat_template.jinja", MOST_TEMPLATE)
    path = directory / "tokenizer_config.json"
    config = Fields(read_json(path), str(path))
    listed = config.get("chat_template")
    if not isinstance(listed, list):
        return config.text("chat_template", MOST_TEMPLATE)
    if not all(isinstance(entry, Mapping) for entry in listed):
        raise config.wrong("chat_template", "a text, or a list of objects with a name and a template")
    entries = [Fields(entry, f"{path}: chat_template") for entry in listed]
    return next((each.text("template", MOST_TEMPLATE) for each in entries if each.text("name") == "default"), None)


def _settings(directory: Path) -> Fields:
    """The fields of both files beside tokenizer.json; where both have one, that of the second."""
    files = directory / "special_tokens_map.json", directory / "tokenizer_config.json"
    return Fields({key: value for file in files for key, value in read_json(file).items()}, str(files[-1]))


def _read(path: Path) -> tokenizers.Tokenizer:
    try:
        data = read_bytes(path, _MOST)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing; write it with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        ) from None
    _check_model(data, path)
    with library_errors(f"{path} is not a tokenizer that the tokenizers library reads"):
        full = tokenizers.Tokenizer.from_buffer(data)
        full.no_truncation()  # before any text is encoded: it pads to as many ids as the file says
        full.no_padding()
        vocabulary = full.get_vocab(with_added_tokens=False)
    by_id = {i: token for token, i in vocabulary.items()}
    if len(by_id) != len(vocabulary):
        token, i = next((token, i) for token, i in vocabulary.items() if by_id[i] != token)
        raise CheckpointError(f"{path}: {shown(token)} and {shown(by_id[i])} have one id, {i}; download it again")
    return full


def _check_model(data: bytes, path: Path) -> None:
    """Refuse a prefix at which the library would end the process: it cuts as many bytes off the right half of each
    merge, and panics where the cut is within a character."""
    own = Fields(json_object(data, str(path)), str(path)).inner("model")
    if "merges" in own and own.text("continuing_subword_prefix"):
        raise own.wrong("continuing_subword_prefix", "empty or null beside merges")


def _text(fields: Fields, name: str) -> str | None:
    """The text of a token, which is a string, or an object with the text as `content`."""
    return fields.inner(name).text("content") if isinstance(fields.get(name), Mapping) else fields.text(name)


def _add_configured(full: tokenizers.Tokenizer, config: Fields, named: Collection[str], path: Path) -> None:
    """Add the tokens that older checkpoints name in tokenizer_config.json alone. Where it describes a token of
    tokenizer.json differently, it wins, as with transformers. `named` tokens, such as eos_token, are special."""
    present = {token.content: token for token in full.get_added_tokens_decoder().values()}
    entries = _configured(config)
    others = [token for token in entries.values() if repr(token) != repr(present.get(token.content))]
    for token in others:
        if token.content in present and config.get("tokenizer_class") not in _PLAIN_CLASSES:
            _check_strips(present[token.content], token, path)
        token.special = token.special or token.content in named
    full.add_tokens(others)
    for number, token in entries.items():
        if (found := full.token_to_id(token.content)) != number:
            text = shown(token.content)
            raise CheckpointError(f"{path}: {text} has the id {found}, but tokenizer_config.json gives it {number}")


def _configured(config: Fields) -> dict[int, AddedToken]:
    """The tokens of added_tokens_decoder by their ids, ascending."""
    decoder = config.inner("added_tokens_decoder")
    found = {}
    for number in decoder:
        if not number.isdecimal() or not number.isascii() or len(number) > len(str(MOST_INT32)):
            raise CheckpointError(f"{decoder.where}: {shown(number)} is no id; download the file again")
        entry = decoder.inner(number)
        if (content := entry.text("content")) is None:
            raise entry.wrong("content", "a text")
        flags = {flag: value for flag in _FLAGS if (value := entry.flag(flag)) is not None}
        found[int(number)] = AddedToken(content, **flags)
    return dict(sorted(found.items()))


def _check_strips(token: AddedToken, other: AddedToken, path: Path) -> None:
    """Refuse a token that both files describe differently, for tokenizer classes by which either of them may win."""
    if differing := [flag for flag in _STRIPS if getattr(token, flag) != getattr(other, flag)]:
        raise CheckpointError(
            f"{path}: {shown(token.content)} has another {' and '.join(differing)} than in tokenizer_config.json: make "
            "both files alike"
        )


def _bos(full: tokenizers.Tokenizer) -> int | None:
    with_specials = full.encode("a", add_special_tokens=True).ids
    plain = full.encode("a", add_special_tokens=False).ids
    return with_specials[0] if with_specials[:1] != plain[:1] else None
