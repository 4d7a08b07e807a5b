"""The start-up hook, in fresh interpreters: it must work, cost nothing and never do harm."""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAME = "phoonnx_llasa_autoload"

FAKE_HOST = {"phoonnx/__init__.py": "", "phoonnx/model_manager.py": "VALUE = 1\n"}
FAKE_PACKAGE = {
    "phoonnx_llasa/__init__.py": "",
    "phoonnx_llasa/host/__init__.py": "",
    "phoonnx_llasa/host/registration.py": (
        "import sys\n"
        "calls = []\n"
        "def register():\n"
        "    calls.append(sys.modules['phoonnx.model_manager'].VALUE)\n"
    ),
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site folder as an installation leaves it: the three start-up files, compiled."""
    folder = tmp_path / "site"
    folder.mkdir()
    for kind in ("py", "pth", "start"):
        shutil.copyfile(ROOT / f"{NAME}.{kind}", folder / f"{NAME}.{kind}")
    py_compile.compile(str(folder / f"{NAME}.py"))
    return folder


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def python(
    site: Path, code: str, *, bare: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that has processed the site folder as at its start.

    Args:
        bare: without any other site folder, so that fakes can stand for the real packages.
    """
    # Python 3.15 and later read the .start file, older ones the .pth file.
    begin = f"import sys, site\nbefore = set(sys.modules)\nsite.addsitedir({str(site)!r})\n"
    env = {k: v for k, v in os.environ.items() if k not in {"PHOONNX_LLASA_AUTOLOAD", "PYTHONPATH"}}
    return subprocess.run(
        [sys.executable, *(["-S"] if bare else []), "-c", begin + code],
        env=env | environment,
        cwd=site.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def check(result: subprocess.CompletedProcess[str], output: str) -> None:
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout.split() == output.split()


def test_python_starts_with_nothing_but_a_hook(site: Path) -> None:
    code = (
        "print(*sorted(set(sys.modules) - before), type(sys.meta_path[0]).__name__,"
        " len([f for f in sys.meta_path if type(f).__module__ == 'phoonnx_llasa_autoload']))"
    )
    check(python(site, code), f"{NAME} _Finder 1")


def test_the_hook_registers_once_when_the_host_is_imported(site: Path) -> None:
    write(site, FAKE_HOST | FAKE_PACKAGE)
    code = (
        "import phoonnx; print('phoonnx_llasa' in sys.modules)\n"
        "import phoonnx.model_manager\n"
        "from phoonnx_llasa.host.registration import calls; print(calls)\n"
        "import phoonnx.model_manager; print(calls)\n"
    )
    check(python(site, code), "False [1] [1]")


def test_a_host_that_is_loaded_anew_is_registered_with_anew(site: Path) -> None:
    write(site, FAKE_HOST | FAKE_PACKAGE)
    code = (
        "import importlib, phoonnx.model_manager as m\n"
        "from phoonnx_llasa.host.registration import calls\n"
        "importlib.reload(m); print(calls)\n"
        "del sys.modules['phoonnx.model_manager']; import phoonnx.model_manager; print(calls)\n"
    )
    check(python(site, code), "[1, 1] [1, 1, 1]")


def test_the_hosts_module_looks_as_without_the_hook(site: Path) -> None:
    write(site, FAKE_HOST | FAKE_PACKAGE)
    code = (
        "import importlib, inspect, pickle, phoonnx.model_manager as m\n"
        "print(type(m.__loader__).__name__, vars(m.__loader__).keys(), m.__spec__.loader is "
        "m.__loader__, pickle.loads(pickle.dumps(m.__spec__)).origin == m.__file__)\n"
        "print(inspect.getsource(m).strip(), importlib.reload(m) is m)\n"
    )
    expected = "SourceFileLoader dict_keys(['name', 'path']) True True VALUE = 1 True"
    check(python(site, code), expected)


@pytest.mark.parametrize("value", ["0", "false", "No", " off "])
def test_the_switch_turns_the_hook_off(site: Path, value: str) -> None:
    write(site, FAKE_HOST | FAKE_PACKAGE)
    code = (
        "import phoonnx.model_manager; print('phoonnx_llasa' in sys.modules,"
        " any(type(f).__name__ == '_Finder' for f in sys.meta_path))"
    )
    check(python(site, code, PHOONNX_LLASA_AUTOLOAD=value), "False False")


def test_by_hand_the_switch_does_not_matter(site: Path) -> None:
    write(site, FAKE_HOST | FAKE_PACKAGE)
    code = (
        "import phoonnx_llasa_autoload as a; a.install(force=True); a.install(force=True)\n"
        "print(len([f for f in sys.meta_path if type(f).__name__ == '_Finder']))\n"
        "import phoonnx.model_manager\n"
        "from phoonnx_llasa.host.registration import calls; print(calls)\n"
        "a.install(force=True); print(calls)\n"
    )
    check(python(site, code, PHOONNX_LLASA_AUTOLOAD="0"), "1 [1] [1, 1]")


def test_a_host_that_is_there_already_is_registered_with_at_once(site: Path) -> None:
    write(site, FAKE_HOST | FAKE_PACKAGE)
    code = (
        "import phoonnx.model_manager, phoonnx_llasa_autoload as a; a.install()\n"
        "from phoonnx_llasa.host.registration import calls; print(calls)\n"
    )
    off = "import os; os.environ['PHOONNX_LLASA_AUTOLOAD'] = '1'\n"
    check(python(site, off + code, PHOONNX_LLASA_AUTOLOAD="0"), "[1]")


def test_a_python_without_phoonnx_is_as_ever(site: Path) -> None:
    code = (
        "try: import phoonnx.model_manager\n"
        "except ModuleNotFoundError as error: print(error.name)\n"
        "import json; print(type(sys.meta_path[0]).__name__)\n"
    )
    check(python(site, code), "phoonnx _Finder")


def test_a_host_that_fails_to_import_is_waited_for_again(site: Path) -> None:
    write(site, FAKE_HOST | FAKE_PACKAGE)
    write(site, {"phoonnx/model_manager.py": "import os\nVALUE = int(os.environ['VALUE'])\n"})
    code = (
        "import os\n"
        "try: import phoonnx.model_manager\n"
        "except KeyError as error: print(error.args[0], type(sys.meta_path[0]).__name__)\n"
        "os.environ['VALUE'] = '7'\n"
        "import phoonnx.model_manager\n"
        "from phoonnx_llasa.host.registration import calls; print(calls)\n"
    )
    check(python(site, code), "VALUE _Finder [7]")


def test_looking_for_the_hosts_module_does_not_register(site: Path) -> None:
    write(site, FAKE_HOST | FAKE_PACKAGE)
    code = (
        "import importlib.util as u\n"
        "spec = u.find_spec('phoonnx.model_manager')\n"
        "print('phoonnx_llasa' in sys.modules, type(sys.meta_path[0]).__name__)\n"
        "other = u.module_from_spec(spec); spec.loader.exec_module(other); print(other.VALUE)\n"
        "print('phoonnx_llasa' in sys.modules)\n"
        "import phoonnx.model_manager; print('phoonnx_llasa' in sys.modules)\n"
    )
    check(python(site, code), "False _Finder 1 False True")


@pytest.mark.parametrize(
    "package",
    [
        {},
        {"phoonnx_llasa/__init__.py": "raise RuntimeError('broken')"},
        FAKE_PACKAGE | {"phoonnx_llasa/host/registration.py": "def register(): 1 / 0"},
    ],
    ids=["missing", "does not import", "does not register"],
)
def test_a_broken_package_does_not_take_the_host_down(site: Path, package: dict[str, str]) -> None:
    write(site, FAKE_HOST | package)
    result = python(site, "import phoonnx.model_manager as m; print(m.VALUE)")
    assert (result.returncode, result.stdout) == (0, "1\n")
    assert "phoonnx-llasa could not register its voices with phoonnx" in result.stderr
    assert "PHOONNX_LLASA_AUTOLOAD=0" in result.stderr


def test_a_loader_that_cannot_be_watched_is_left_alone(site: Path) -> None:
    write(site, FAKE_HOST | FAKE_PACKAGE)
    code = (
        "import importlib.util\n"
        "class Loader:\n"
        "    create_module = staticmethod(lambda spec: None)\n"
        "    exec_module = staticmethod(lambda module: setattr(module, 'VALUE', 3))\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'phoonnx.model_manager':\n"
        "            return importlib.util.spec_from_loader(name, Loader)\n"
        "sys.meta_path.insert(1, Finder)\n"
        "import phoonnx.model_manager as m; print(m.VALUE)\n"
    )
    result = python(site, code)
    assert (result.returncode, result.stdout) == (0, "3\n")
    assert "cannot be watched" in result.stderr


def test_threads_that_import_at_once_all_find_it_registered(site: Path) -> None:
    write(site, FAKE_HOST | FAKE_PACKAGE)
    write(site, {"phoonnx/model_manager.py": "import time; time.sleep(0.2); VALUE = 1\n"})
    code = (
        "import threading\n"
        "seen = []\n"
        "def use():\n"
        "    import phoonnx.model_manager\n"
        "    seen.append(len(sys.modules['phoonnx_llasa.host.registration'].calls))\n"
        "threads = [threading.Thread(target=use) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "print(*seen)\n"
    )
    check(python(site, code), "1 " * 8)


def test_python_starts_without_the_module_that_the_line_names(site: Path) -> None:
    for path in (site / f"{NAME}.py", *(site / "__pycache__").iterdir()):
        path.unlink()
    assert python(site, "print('started')").stdout == "started\n"


def test_starting_costs_about_a_millisecond(site: Path) -> None:
    # Best of several, with room for a loaded machine: what has to be noticed is a heavy import.
    code = (
        "import time\n"
        "del sys.modules['phoonnx_llasa_autoload']; sys.meta_path[:] = sys.meta_path[1:]\n"
        f"line = open({str(site / (NAME + '.pth'))!r}).read()\n"
        "start = time.perf_counter(); exec(line); print(time.perf_counter() - start)\n"
    )
    seconds = [float(python(site, code).stdout) for _ in range(5)]
    assert min(seconds) < 0.005


def test_the_start_file_names_a_callable_without_arguments(site: Path) -> None:
    # What Python 3.15 does with the file, for the older ones that run this test.
    (line,) = (site / f"{NAME}.start").read_text(encoding="utf-8").splitlines()
    (site / f"{NAME}.pth").unlink()
    code = (
        f"import pkgutil; print(pkgutil.resolve_name({line!r})())\n"
        "print(type(sys.meta_path[0]).__name__)\n"
    )
    check(python(site, code), "None _Finder")


def test_the_real_host_is_registered_with(site: Path) -> None:
    (site / "phoonnx_llasa").symlink_to(ROOT / "phoonnx_llasa")
    code = (
        "import phoonnx; print('phoonnx_llasa' in sys.modules)\n"
        "from phoonnx.model_manager import TTSModelManager as manager\n"
        "from phoonnx.engines import get_adapter\n"
        "print(type(get_adapter('llasa')).__module__, manager.voice_index_files()[-1].stem,"
        " hasattr(manager, 'load_voice'))\n"
    )
    result = python(site, code, bare=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["False", "phoonnx_llasa.host.adapter", "phoonnx_llasa", "True"]


def test_importing_the_package_registers_with_the_real_host_though_the_hook_is_off(
    site: Path,
) -> None:
    (site / "phoonnx_llasa").symlink_to(ROOT / "phoonnx_llasa")
    code = (
        "from phoonnx.model_manager import TTSModelManager as manager\n"
        "print(hasattr(manager, 'load_voice'))\n"
        "import phoonnx_llasa; print(hasattr(manager, 'load_voice'))\n"
    )
    result = python(site, code, bare=False, PHOONNX_LLASA_AUTOLOAD="0")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["False", "True"]


def test_importing_the_package_does_not_import_the_host() -> None:
    code = (
        "import sys, phoonnx_llasa\n"
        "print([m for m in ('phoonnx', 'onnxruntime', 'numpy') if m in sys.modules])\n"
        "print(sorted(n for n in phoonnx_llasa.__all__ if n not in dir(phoonnx_llasa)))\n"
        "print(phoonnx_llasa.LlasaError.__name__, hasattr(phoonnx_llasa, 'nothing'))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[:3] == ["[]", "[]", "LlasaError False"]
