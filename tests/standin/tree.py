"""A tree of files, folders and links, kept as one tar file: a disk can be slow at a thousand small ones."""

import io
import os
import tarfile
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tree:
    """Paths are absolute; folders come with what is in them."""

    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    def text(self, folder: str, **files: object) -> None:
        """A line in each of these files."""
        self.files |= {f"{folder}/{name}": f"{content}\n" for name, content in files.items()}

    def link(self, at: str, to: str) -> None:
        self.links[at] = to

    def resolved(self, path: str) -> str:
        """Without links on the way."""
        at = ""
        for part in path.strip("/").split("/"):
            at = f"{at}/{part}"
            at = self.resolved(self.links[at]) if at in self.links else at
        return at

    def take_away(self, path: str) -> None:
        """A file, a link, or a folder with all that is in it."""
        parent, name = os.path.split(path)
        path = f"{self.resolved(parent)}/{name}"
        gone = {
            link for link in [*self.files, *self.links, *self.folders] if link == path or link.startswith(f"{path}/")
        }
        assert gone, f"nothing to take away at {path}"
        self.files = {path: text for path, text in self.files.items() if path not in gone}
        self.links = {link: to for link, to in self.links.items() if link not in gone}
        self.folders -= gone

    def save(self, path: Path) -> None:
        """Links become relative, so that they hold wherever the tree is mounted."""
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
            for name in sorted(self.folders | {os.path.dirname(link) for link in [*self.files, *self.links]}):
                _add(archive, name, tarfile.DIRTYPE, 0o755)
            for name, to in self.links.items():
                _add(archive, name, tarfile.SYMTYPE, 0o777, link=os.path.relpath(to, os.path.dirname(name)))
            for name, text in self.files.items():
                _add(archive, name, tarfile.REGTYPE, 0o644, text.encode())


def _add(archive: tarfile.TarFile, name: str, kind: bytes, mode: int, content: bytes = b"", link: str = "") -> None:
    entry = tarfile.TarInfo(name.lstrip("/"))
    entry.type, entry.mode, entry.size, entry.linkname = kind, mode, len(content), link
    archive.addfile(entry, io.BytesIO(content))
