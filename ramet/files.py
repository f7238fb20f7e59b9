"""Files that take another's place."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path`, with its ending, to write a file to. At the end of the block that takes the place and the
    permissions of what `path` names, through links too; where the block raises, it is removed. An OSError names
    `path`."""
    target = Path(os.path.realpath(path))
    made = target.with_name(f".{secrets.token_hex(4)}-{target.name}")
    try:
        yield made
        with suppress(FileNotFoundError):
            made.chmod(stat.S_IMODE(target.stat().st_mode))
        made.replace(target)
    except OSError as error:
        error.filename = str(path)
        error.filename2 = None
        raise
    finally:
        made.unlink(missing_ok=True)
