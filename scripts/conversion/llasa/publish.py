"""A bundle -> a repository on the Hugging Face hub; a dry run unless told otherwise.

    python -m scripts.conversion.llasa.publish llasa-1b-onnx --repo OpenVoiceOS/phoonnx-llasa

Without `--upload` it lists the files with their sizes and sends nothing. The bundle is opened and
its checksums are compared before anything is sent. The token is that of `hf auth login` or
HF_TOKEN; this script neither takes nor shows it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Protocol

from phoonnx_llasa.errors import LlasaError
from scripts.conversion.llasa.checksums import check_sums, files_of
from scripts.conversion.llasa.make_bundle import BundleMismatchError, check_bundle


class Hub(Protocol):
    """What is used of `huggingface_hub.HfApi`."""

    def create_repo(self, repo_id: str, *, exist_ok: bool, private: bool) -> Any:
        """Make a repository unless it is there."""

    def upload_folder(
        self,
        *,
        repo_id: str,
        folder_path: Path,
        path_in_repo: str,
        revision: str,
        commit_message: str,
    ) -> Any:
        """Send a folder in one commit."""


class NotPublishableError(Exception):
    """The folder is not as it was made."""


def listing(folder: Path, path_in_repo: str) -> str:
    """The files as they will lie in the repository, with their sizes."""
    sizes = {name: path.stat().st_size for name, path in sorted(_all_files(folder).items())}
    lines = [f"{size:>15,}  {path_in_repo}/{name}" for name, size in sizes.items()]
    return "\n".join([*lines, f"{sum(sizes.values()):>15,}  bytes in {len(sizes)} files"])


def check(folder: Path) -> None:
    """Make sure that the bundle opens and is what was made.

    Raises:
        LlasaError, BundleMismatchError: it does not open.
        NotPublishableError: a file is not as its checksum says.
    """
    check_bundle(folder)
    if wrong := check_sums(folder):
        raise NotPublishableError(f"{folder}: " + "; ".join(wrong))


def publish(
    hub: Hub,
    folder: Path,
    *,
    repo_id: str,
    path_in_repo: str,
    revision: str = "main",
    private: bool = False,
    message: str = "",
) -> Any:
    """Check a bundle and send it in one commit; gives what the hub answers.

    Raises:
        LlasaError, BundleMismatchError, NotPublishableError: as `check`; nothing is sent then.
    """
    check(folder)
    hub.create_repo(repo_id, exist_ok=True, private=private)
    return hub.upload_folder(
        repo_id=repo_id,
        folder_path=folder,
        path_in_repo=path_in_repo,
        revision=revision,
        commit_message=message or f"Upload {path_in_repo}",
    )


def _all_files(folder: Path) -> dict[str, Path]:
    sums = {path.name: path for path in folder.glob("SHA256SUMS")}
    return files_of(folder) | sums


def main(argv: list[str] | None = None, *, hub: Hub | None = None) -> int:
    """Command line; `hub` stands in for huggingface_hub's own client."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="the bundle")
    parser.add_argument("--repo", required=True, help="owner/name on the hub")
    parser.add_argument("--path-in-repo", help="folder in it (default: the bundle's own name)")
    parser.add_argument("--revision", default="main", help="branch")
    parser.add_argument("--message", default="", help="of the commit")
    parser.add_argument("--private", action="store_true", help="if the repository has to be made")
    parser.add_argument("--upload", action="store_true", help="do it")
    arguments = parser.parse_args(argv)
    path_in_repo = arguments.path_in_repo or arguments.folder.resolve().name
    try:
        check(arguments.folder)
        print(f"{arguments.repo}@{arguments.revision}\n{listing(arguments.folder, path_in_repo)}")
        if not arguments.upload:
            print("Nothing was sent. Say --upload to do it.")
            return 0
        if hub is None:
            from huggingface_hub import HfApi

            hub = HfApi()
        answer = publish(
            hub,
            arguments.folder,
            repo_id=arguments.repo,
            path_in_repo=path_in_repo,
            revision=arguments.revision,
            private=arguments.private,
            message=arguments.message,
        )
    except (LlasaError, BundleMismatchError, NotPublishableError, OSError, ValueError) as error:
        # huggingface_hub's own errors are OSErrors and ValueErrors
        parser.exit(1, f"{error}\n")
    print(answer)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
