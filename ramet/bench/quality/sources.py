"""The files that labelled texts are taken from: public repositories, each at one commit, each file by its hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import httpx2

from ramet.errors import RametError
from ramet.files import replacing
from ramet.ops.native.build import cache_directory

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Source:
    """A file of a repository at a commit. sha256: of the file."""

    repository: str
    commit: str
    path: str
    sha256: str

    @property
    def url(self) -> str:
        return f"https://raw.githubusercontent.com/{self.repository}/{self.commit}/{self.path}"


_CLINC = ("clinc/oos-eval", "828f8093932c8fe6ca7936c3d2e52903b1c523de")
_POLYAI = ("PolyAI-LDN/task-specific-datasets", "57ec275d8078af65b7731c2a98be812d844a6d6b")
_BIPIA = ("microsoft/BIPIA", "1a2a91da6bb12838e05d1b2e54d98e2f37b835f3")

CLINC = Source(*_CLINC, "data/data_full.json", "36923c3705a59e08fe9c3883d8bc2dd966ef93e22cb78ac41171782a698d56e0")
BANKING = Source(*_POLYAI, "banking_data/test.csv", "d12d6e3bc4c3103966ae786dc435913c0c563dfa328f5a3646d0e62cfeeb474d")
CONTEXTS = (
    Source(*_BIPIA, "benchmark/email/train.jsonl", "82207193cb8ce06713eeb7c33ca0716446613512e2ad9303b302ba14d425ddd4"),
    Source(*_BIPIA, "benchmark/email/test.jsonl", "217b403faaa1d0cb12c24892bea39f4a0b9e2819919ac7e2b902006e28278cdb"),
    Source(*_BIPIA, "benchmark/table/test.jsonl", "3d5eaab192b80bada762e3cd7655583a14e5888ba8b845a01f0434e4ccc4291e"),
)
ATTACKS = (
    Source(
        *_BIPIA, "benchmark/text_attack_train.json", "63f95d3e67eac4178cdabdbdaf192cd05f2b6ed0702b578f1d30d556e5155670"
    ),
    Source(
        *_BIPIA, "benchmark/text_attack_test.json", "75750e7b4e8b34e8f9d88d89b357aeaaf02bd07f9e493ccd37eda74a0cd7c7f8"
    ),
)


@dataclass(frozen=True, slots=True)
class Sources:
    """Reads sources. `directory`: where their repositories lie, as OWNER/NAME; None: what was fetched once stays in the
    user's cache."""

    directory: Path | None = None

    def text(self, source: Source) -> str:
        """The text of a file. Raises RametError where it is nowhere to be had, or is another."""
        kept = (self.directory or cache_directory() / "quality") / source.repository / source.path
        data = kept.read_bytes() if kept.is_file() else self._fetched(source, kept)
        found = hashlib.sha256(data).hexdigest()
        if found != source.sha256:
            where = kept if kept.is_file() else source.url
            raise RametError(f"{where} is not {source.path} at commit {source.commit}: its sha256 is {found}")
        if self.directory is None and not kept.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            with replacing(kept) as made:
                made.write_bytes(data)
        return data.decode()

    def _fetched(self, source: Source, kept: Path) -> bytes:
        remedy = f"clone https://github.com/{source.repository} to OWNER/NAME below a folder, and give that with --data"
        if self.directory is not None:
            raise RametError(f"there is no {kept}; {remedy}")
        try:
            answer = httpx2.get(source.url, timeout=TIMEOUT_S, follow_redirects=True)
            answer.raise_for_status()
        except httpx2.HTTPError as error:
            raise RametError(f"{source.url} cannot be fetched ({error}); {remedy}") from error
        found: bytes = answer.content
        return found
