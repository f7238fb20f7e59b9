"""Files that commands are given: looked at before anything is read or written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import click

from ramet.errors import InvalidRequest
from ramet.rows.form import form_of


class OldFile(click.Path):
    """A file that is there and has an end: no pipe and no device, which may go on for ever."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = cast(Path, super().convert(value, param, ctx))
        if not path.is_file():
            self.fail(f"{str(path)!r} is a pipe or a device: write what it holds to a file first", param, ctx)
        return path


class NewFile(click.Path):
    """A file to write, in a directory that is there, with one of `endings` where any are named. One that is there is a
    plain file: no pipe and no device."""

    def __init__(self, *endings: str) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)
        self.endings = endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path, name = cast(Path, super().convert(value, param, ctx)), os.fspath(value)
        if not path.parent.is_dir():
            self.fail(f"there is no directory {str(path.absolute().parent)!r}", param, ctx)
        if not name or name.endswith("/"):
            self.fail(f"{name!r} names no file", param, ctx)
        if path.exists() and not path.is_file():
            self.fail(f"{str(path)!r} is a pipe or a device: name a file", param, ctx)
        if Path(os.path.realpath(path)).is_symlink():
            self.fail(f"{str(path)!r} is a link to itself", param, ctx)
        if not path.exists() and not os.access(path.parent, os.W_OK):
            self.fail(f"the directory {str(path.absolute().parent)!r} is not writable", param, ctx)
        if self.endings and path.suffix.lower() not in self.endings:
            self.fail(f"{path.name!r} does not end in {', '.join(self.endings)}", param, ctx)
        return path


class OldRows(OldFile):
    """A file of rows that is there, in a form that its name says."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _with_form(self, super().convert(value, param, ctx), param, ctx)


class NewRows(NewFile):
    """A file of rows to write, in the form that its name says."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _with_form(self, super().convert(value, param, ctx), param, ctx)


def _with_form(kind: click.Path, path: Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
    try:
        form_of(path)
    except InvalidRequest as error:
        kind.fail(str(error), param, ctx)
    return path
