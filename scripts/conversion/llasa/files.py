"""Files that appear whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside `folder` that takes its name when the block ends well.

    An existing `folder` is replaced as a whole (it is moved aside first, so that there is never
    a mixture of old and new files); when the block raises, `folder` is as it was before.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        fresh = work / "new"
        fresh.mkdir()
        yield fresh
        if folder.exists():
            folder.replace(work / "old")
        fresh.replace(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def whole_files(*paths: Path) -> Iterator[tuple[Path, ...]]:
    """Yield a temporary path for each path; all are renamed, in order, when the block ends well.

    The temporary files lie in a folder beside the first path under their final base names, so a
    graph written there may refer to its sidecar by name. Files the block did not make are passed
    over. When the block raises, nothing appears.
    """
    target = paths[0].absolute().parent
    target.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".writing.", dir=target))
    try:
        fresh = tuple(work / path.name for path in paths)
        yield fresh
        for made, path in zip(fresh, paths, strict=True):
            if made.exists():
                made.replace(path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
