"""The tensors of a directory of *.safetensors, and the files that hold them, by the index where there is one."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ramet.errors import CheckpointError
from ramet.foreign import read_json
from ramet.quoting import shown
from ramet.weights.header import check_header

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_SUFFIX = ".safetensors"
COMPUTED = "rotary_emb.inv_freq"  # a buffer that older checkpoints saved; it follows from the configuration
_ORIGINAL = "consolidated"  # begins the names of a publisher's own copy of the same weights
_OTHERS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.index.json")
_LISTED = 4  # names in a message
_MOST_NAME = 255  # letters of a file's name
_MOST_INDEX = 1 << 26  # bytes


def open_tensors(directory: Path) -> tuple[dict[str, Any], list[Path]]:
    """The open file of every tensor of the model, and the paths of these files.

    The index decides; tensors of its files that it does not list are left out, with a warning. Without an index the
    tensors are those of model.safetensors, or of the only file. Further files that hold copies are left out, with a
    warning; a file with tensors that the model's files lack is refused. Raises CheckpointError.
    """
    found = {path.name for path in directory.glob("*.safetensors")}
    index = _index(directory, found)
    if index is None:
        only = _only(directory, found)
        file = _opened(directory / only)
        tensors = dict.fromkeys(file.keys(), file)
        used = {only}
    else:
        tensors = _placed(directory, index)
        used = set(index.values())
    _check_others(directory, sorted(found - used), tensors)
    return tensors, [directory / name for name in sorted(used)]


def _index(directory: Path, found: Collection[str]) -> dict[str, str] | None:
    """The file of each tensor, by the index; None where there is no index. Raises CheckpointError."""
    raw = read_json(directory / INDEX, most=_MOST_INDEX)
    if not raw:
        return None
    index = raw.get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(shard, str) for shard in index.values()):
        raise CheckpointError(f"{directory / INDEX} has no weight_map of names to files; download it again")
    shards = set(index.values())
    for shard in shards:
        plain = Path(shard).name == shard and shard.isprintable() and len(shard) <= _MOST_NAME
        if not plain or Path(shard).suffix != _SUFFIX:
            raise CheckpointError(
                f"{directory / INDEX}: weight_map names {shown(shard)}, no *{_SUFFIX} file of its own directory"
            )
    if SINGLE not in found or SINGLE in shards:
        return index
    if there := sorted(shards & set(found)):
        raise CheckpointError(
            f"{directory} holds the weights twice: {SINGLE}, and {_listed(there)}, which {INDEX} names; take away the "
            "copy that is not to count, the index with its files"
        )
    _warn(directory, f"{INDEX} is stale: none of its files is there, so {SINGLE} is read")
    return None


def _only(directory: Path, found: Collection[str]) -> str:
    """The file that holds a model without an index. Raises CheckpointError."""
    if SINGLE in found:
        return SINGLE
    if len(found) == 1:
        return next(iter(found))
    if found:
        raise CheckpointError(
            f"{directory} holds {_listed(sorted(found))} and no {INDEX}, which says what of them is the model: "
            "download that file too"
        )
    others = sorted({path.name for pattern in _OTHERS for path in directory.glob(pattern)})
    beside = f"; beside it there are {_listed(others)}, which are not read" if others else ""
    raise CheckpointError(
        f"{directory / SINGLE} is missing{beside}; download the checkpoint's *.safetensors, or save it anew with "
        "transformers: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
    )


def _placed(directory: Path, index: Mapping[str, str]) -> dict[str, Any]:
    """The open file of every tensor that the index names."""
    files = {shard: _opened(directory / shard) for shard in sorted(set(index.values()))}
    held = {(name, shard) for shard, file in files.items() for name in file.keys()}  # noqa: SIM118, no mapping
    placed = set(index.items())
    for name, shard in sorted(placed - held):
        raise CheckpointError(f"{directory / shard}: {name} is absent, though {INDEX} places it there; download again")
    if over := sorted(f"{name} of {shard}" for name, shard in held - placed if not name.endswith(COMPUTED)):
        _warn(directory, f"{INDEX} passes over {_listed(over)}: left out")
    return {name: files[shard] for name, shard in index.items()}


def _check_others(directory: Path, others: Iterable[str], tensors: Collection[str]) -> None:
    """Refuse files that are not read and hold tensors that the model's own files lack."""
    for name in others:
        more = [] if name.startswith(_ORIGINAL) else sorted(set(_opened(directory / name).keys()) - set(tensors))
        if more:
            raise CheckpointError(
                f"{directory / name} holds {_listed(more)}, which the model's own files lack: a directory that is more "
                "than its weights is not served; if the file is not to count, take it away"
            )
        _warn(directory, f"{name} is not among the model's own files: left out")


def _opened(path: Path) -> Any:
    """The mapped file; the library's type has no public name."""
    check_header(path)
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or cut short ({error}); download it again") from error


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + rest


def _warn(directory: Path, text: str) -> None:
    warnings.warn(f"{directory}: {text}", stacklevel=2)
