"""The core imports no framework: proved in fresh interpreters, and the proof can fail."""

import json
import os
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
FRAMEWORKS = ("torch", "tensorflow", "keras", "paddle")
PACKAGES = ("harness", "backends", "datasets", "reports")

# Imports the named modules one by one; prints, as JSON, each that brought frameworks along.
IMPORT_AND_TELL = """
import importlib, json, sys
names, frameworks = json.loads(sys.argv[1])
brought = {}
for name in names:
    before = set(sys.modules)
    importlib.import_module(name)
    new = {module.partition(".")[0] for module in set(sys.modules) - before}
    if new & set(frameworks):
        brought[name] = sorted(new & set(frameworks))
print(json.dumps(brought))
"""


def modules_of(package: str) -> list[str]:
    """Return the names of a package and of all modules below it, __main__ left out."""
    found = pkgutil.walk_packages(import_module(package).__path__, f"{package}.")
    return [package, *sorted(m.name for m in found if not m.name.endswith(".__main__"))]


def frameworks_imported_by(modules: list[str], folder: Path) -> dict[str, list[str]]:
    """Import modules in a fresh interpreter started in folder; return the frameworks of each."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_AND_TELL, json.dumps([modules, FRAMEWORKS])],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_every_module_loads_no_framework(package: str):
    assert frameworks_imported_by(modules_of(package), REPOSITORY) == {}


def test_the_check_sees_a_framework_that_is_imported_at_second_hand(tmp_path: Path):
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "innocent.py").write_text("import json\n")
    (tmp_path / "middle.py").write_text("import torch\n")
    (tmp_path / "guilty.py").write_text("import middle\n")

    assert frameworks_imported_by(["innocent", "guilty"], tmp_path) == {"guilty": ["torch"]}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_is_named_like_a_framework(package: str):
    named = {name.rpartition(".")[2] for name in modules_of(package)}

    assert not named & set(FRAMEWORKS)


@pytest.mark.parametrize("package", PACKAGES)
def test_our_packages_are_the_ones_of_this_repository(package: str):
    assert Path(import_module(package).__path__[0]) == REPOSITORY / package
