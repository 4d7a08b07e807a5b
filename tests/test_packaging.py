"""What is in the package and what may know what."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import phoonnx_llasa
from phoonnx_llasa._version import __version__

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "phoonnx_llasa"
MODULES = sorted(PACKAGE.rglob("*.py"))
AUTOLOAD = sorted(path.name for path in ROOT.glob("phoonnx_llasa_autoload.*"))


def imports_of(path: Path) -> Iterator[str]:
    """Top-level names of everything that a module imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").split(".")[0]


def importers_of(*names: str) -> set[str]:
    return {
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        if not set(names).isdisjoint(imports_of(path))
    }


def test_only_the_host_side_and_the_command_know_phoonnx():
    wrong = {
        name
        for name in importers_of("phoonnx", "scriptconv", "ovos_utils", "ovos_plugin_manager")
        if not name.startswith(("host/", "commands/"))
    }
    assert wrong == set()


def test_only_graph_work_knows_onnx():
    assert {name for name in importers_of("onnx") if not name.startswith("graph/")} == set()


def test_nothing_in_the_package_imports_torch():
    assert importers_of("torch", "transformers", "safetensors") == set()


def test_every_import_is_a_declared_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # what only some of it needs is imported in one place, which says what to install
    assert importers_of("av") == {"tempo.py"}
    optional = project["optional-dependencies"]["speed"]
    declared = {
        re.split(r"[^\w-]", requirement)[0].replace("-", "_")
        for requirement in project["dependencies"] + optional
    }
    imported = {name for path in MODULES for name in imports_of(path)}
    third_party = (
        imported - set(sys.stdlib_module_names) - {"phoonnx_llasa", "phoonnx_llasa_autoload"}
    )
    # what phoonnx cannot be without, and protobuf (google), without which there is no onnx
    assert third_party - declared <= {"scriptconv", "ovos_utils", "google"}


def test_the_version_is_written_in_one_place():
    assert phoonnx_llasa.__version__ == __version__
    written = re.compile(
        rf"__version__\s*(:\s*\w+\s*)?=\s*[\"']|[\"']{re.escape(__version__)}[\"']"
    )
    places = [path for path in MODULES if written.search(path.read_text(encoding="utf-8"))]
    assert places == [PACKAGE / "_version.py"]


def test_the_changelog_begins_with_this_version():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    assert newest is not None
    assert newest[1] == __version__


def test_no_file_names_a_folder_of_somebodys_machine():
    home = re.compile(r"/home/\w|/Users/\w|/root/|/work/|[A-Z]:\\\\Users")
    texts = [
        path
        for pattern in ("phoonnx_llasa/**/*", "scripts/**/*", "docs/**/*", "*", ".ci/*")
        for path in ROOT.glob(pattern)
        if path.suffix in {".py", ".md", ".json", ".toml", ".txt", ".pth", ".start", ".yaml", ""}
        and path.is_file()
        and path.name not in {"tokenizer.json", ".git"}
    ]
    assert PACKAGE / "cli.py" in texts
    assert [path for path in texts if home.search(path.read_text(encoding="utf-8"))] == []


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built as pip builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_package_and_the_start_up_hook(wheel: zipfile.ZipFile):
    names = set(wheel.namelist())
    assert {path.relative_to(ROOT).as_posix() for path in MODULES} <= names
    assert "phoonnx_llasa/py.typed" in names
    for folder in ("demo", "host/voice_index"):
        files = {
            path.relative_to(ROOT).as_posix()
            for path in (PACKAGE / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert files
        assert files <= names
    # Python reads start-up files at the root of site-packages only
    assert {Path(name).suffix for name in AUTOLOAD} == {".pth", ".py", ".start"}
    for name in AUTOLOAD:
        assert wheel.read(name) == (ROOT / name).read_bytes()


def test_the_wheel_holds_nothing_else(wheel: zipfile.ZipFile):
    info = f"phoonnx_llasa-{__version__}.dist-info"
    roots = {name.split("/")[0] for name in wheel.namelist()}
    assert roots == {"phoonnx_llasa", info, *AUTOLOAD}
    assert not [name for name in wheel.namelist() if "__pycache__" in name or ".part" in name]
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"} <= set(wheel.namelist())


def test_the_wheel_is_small_enough_to_carry_a_voice(wheel: zipfile.ZipFile):
    assert wheel.filename is not None
    assert Path(wheel.filename).stat().st_size <= 12 * 1024 * 1024


def test_the_installed_command_is_ours():
    (command,) = metadata.entry_points(group="console_scripts", name="phoonnx-llasa")
    assert command.value == "phoonnx_llasa.cli:main"
