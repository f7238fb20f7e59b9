"""The Hugging Face hub: a repository or a file of it, in the hub library's own cache."""

from __future__ import annotations

from pathlib import Path

from ramet.errors import CheckpointError
from ramet.weights.beside import check_bare

_PATTERNS = ("*.json", "*.safetensors", "*.jinja")
_PATIENCE_S = 5.0


def is_offline() -> bool:
    """Whether its settings forbid downloads."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def why_silent() -> str | None:
    """Why nothing can be downloaded from the hub; None where it answers. The library itself would ask for half a
    minute."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE_S)
    except Exception as error:  # of whichever client the library uses
        return f"{constants.ENDPOINT} does not answer ({type(error).__name__})"
    return None


def cached(repo: str, file: str) -> Path | None:
    """A file of a repository in the hub's cache, if it is there."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, file)
    return Path(found) if isinstance(found, str) else None


def download(repo: str, file: str | None) -> Path:
    """Fetch what is not yet in the cache; the token, the cache and offline mode are the hub library's own settings.
    Returns the directory, or the file where one is named. Raises CheckpointError."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    if constants.HF_HUB_CACHE.startswith("~"):  # nobody knows whose
        raise CheckpointError(f"{repo} has no place to be kept: this user has no home directory; set HF_HOME to one")
    try:
        patterns = list(_PATTERNS) if file is None else [file]
        nested = ["*/*", "consolidated*"] if file is None else None  # other copies of the same weights
        directory = Path(snapshot_download(repo, allow_patterns=patterns, ignore_patterns=nested))
    except LocalEntryNotFoundError as error:
        raise CheckpointError(f"{repo} is not in the local cache, and the hub cannot be reached: {error}") from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        message = f"{repo} cannot be fetched: {error}; check the name, and set HF_TOKEN if the model is gated"
        raise CheckpointError(message) from error
    if file is None:
        check_bare(directory)
    if file is None and not (directory / "config.json").exists():
        raise CheckpointError(f"{repo} holds no config.json; if it holds GGUF files, name one: {repo}:FILE.gguf")
    if file is not None and not (directory / file).exists():
        raise CheckpointError(f"{repo} holds no {file}")
    return directory if file is None else directory / file
