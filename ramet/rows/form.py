"""RowsForm: what a file of rows is written in, by the ending of its name."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Literal

from ramet.errors import InvalidRequest

Kind = Literal["json", "csv", "parquet"]


@dataclass(frozen=True, slots=True)
class RowsForm:
    """JSON Lines, CSV or Parquet; the first two may be compressed by gzip, Parquet is compressed by itself."""

    kind: Kind
    gzipped: bool = False

    @property
    def is_table(self) -> bool:
        """Whether columns are named once for all rows."""
        return self.kind != "json"


FORMS = {
    ".jsonl": RowsForm("json"),
    ".ndjson": RowsForm("json"),
    ".jsonl.gz": RowsForm("json", gzipped=True),
    ".ndjson.gz": RowsForm("json", gzipped=True),
    ".csv": RowsForm("csv"),
    ".csv.gz": RowsForm("csv", gzipped=True),
    ".parquet": RowsForm("parquet"),
}
ENDINGS = ", ".join(FORMS)


def form_of(path: str | os.PathLike[str]) -> RowsForm:
    """The form that a file's name says. Raises InvalidRequest for an ending that is none of `FORMS`, and for Parquet
    where pyarrow is not installed."""
    name = os.fspath(path).lower()
    form = next((form for ending, form in FORMS.items() if name.endswith(ending)), None)
    if form is None:
        raise InvalidRequest(f"{os.fspath(path)}: rows are read and written by a name's ending, one of {ENDINGS}")
    if form.kind == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InvalidRequest(f"{os.fspath(path)}: Parquet needs pyarrow: pip install 'ramet[parquet]'")
    return form
