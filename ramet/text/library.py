"""library_errors(): errors of the tokenizers library become CheckpointErrors of the file that it was reading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ramet.errors import CheckpointError

_PANIC = "PanicException"  # of pyo3, which gives it no module: no Exception, so that `except Exception` lets it through


@contextmanager
def library_errors(where: str) -> Iterator[None]:
    """Raise CheckpointError for all that the block raises: the library raises plain Exception, and panics where its own
    code fails. `where` names the file in the message."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{where}: {error}") from error
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise CheckpointError(f"{where}: {error}") from error
