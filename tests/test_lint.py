"""The linters' rules can fail: each is shown a small tree that breaks it, and one that keeps it."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

LAYERS = "Imports point one way: reports | backends -> harness -> datasets"
NO_FRAMEWORK = "The core imports no framework"
NO_DATASETS = "Adapters do not know the data sets"
NO_OTHER_ADAPTER = "Adapters do not know each other"

# A tree that keeps every contract, as file -> text: who may import whom.
TREE = {
    "datasets/__init__.py": "",
    "harness/__init__.py": "",
    "harness/config.py": "import datasets\n",
    "harness/cli.py": "def report():\n    import reports.page\n",
    "reports/__init__.py": "",
    "reports/page.py": "import harness.config\n",
    "backends/__init__.py": "",
    "backends/fake.py": "import harness.config\n",
} | {
    f"backends/{package}/{name}": text
    for package, framework in {
        "pytorch": "torch",
        "tensorflow_keras": "tensorflow",
        "paddlepaddle": "paddle",
    }.items()
    for name, text in {
        "__init__.py": "",
        "network.py": "import harness.config\n",
        "evidence.py": f"def record():\n    import {framework}\n",
        "backend.py": (
            f"import backends.{package}.network, backends.{package}.evidence\n"
            f"def open():\n    import {framework}\n"
        ),
    }.items()
}


def needs_tool(package: str) -> None:
    """Skip the running test where a tool of the dev extra is not installed."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e '.[dev]' (make lint does)")


def broken_contracts(folder: Path, tree: dict[str, str]) -> set[str]:
    """Write tree into folder and return the names of our import contracts that it breaks."""
    needs_tool("importlinter")
    for path, text in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    shutil.copy(REPOSITORY / "pyproject.toml", folder)
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Contracts:" in done.stdout, done.stdout + done.stderr
    broken = {
        name
        for name, verdict, _ in (line.partition(" BROKEN") for line in done.stdout.splitlines())
        if verdict
    }
    assert (done.returncode != 0) == bool(broken), done.stdout
    return broken


def test_the_allowed_imports_keep_every_contract(tmp_path: Path):
    assert broken_contracts(tmp_path, TREE) == set()


@pytest.mark.parametrize(
    ("path", "text", "contract"),
    [
        ("harness/config.py", "import reports\n", LAYERS),
        ("harness/config.py", "def late():\n    import backends.fake\n", LAYERS),
        ("datasets/scan.py", "import harness\n", LAYERS),
        ("reports/page.py", "import backends.fake\n", LAYERS),
        ("backends/fake.py", "import reports\n", LAYERS),
        ("harness/config.py", "def late():\n    import torch.nn\n", NO_FRAMEWORK),
        ("datasets/scan.py", "import tensorflow\n", NO_FRAMEWORK),
        ("reports/page.py", "def late():\n    import keras\n", NO_FRAMEWORK),
        ("backends/paddlepaddle/backend.py", "import datasets\n", NO_DATASETS),
        ("backends/paddlepaddle/backend.py", "import backends.pytorch.backend\n", NO_OTHER_ADAPTER),
        ("backends/paddlepaddle/network.py", "import backends.pytorch.network\n", NO_OTHER_ADAPTER),
        ("backends/fake.py", "import backends.tensorflow_keras.evidence\n", NO_OTHER_ADAPTER),
    ],
)
def test_a_forbidden_import_breaks_its_contract(
    tmp_path: Path, path: str, text: str, contract: str
):
    assert contract in broken_contracts(tmp_path, TREE | {path: text})


def ruff_codes(path: str, text: str) -> set[str]:
    """Return the codes of what ruff finds with our settings in text, taken as the file path."""
    needs_tool("ruff")
    arguments = ["check", "--no-cache", "--output-format=concise", f"--stdin-filename={path}", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments],
        cwd=REPOSITORY,
        input=f'"""A module."""\n\n{text}',
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith(path)]
    return {line.split(": ", 1)[1].split()[0] for line in found}


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "keras", "paddle"])
def test_a_framework_is_imported_inside_a_function_only(framework: str):
    path = "backends/pytorch/backend.py"
    inside = f"def _native() -> object:\n    import {framework}\n\n    return {framework}\n"

    assert ruff_codes(path, f"import {framework}\n\nnn = {framework}.nn\n") == {"TID253"}
    assert ruff_codes(path, inside) == set()


def test_unpickling_is_refused():
    assert ruff_codes("harness/records.py", "import pickle\n\nload = pickle.load\n") == {"TID251"}


def test_only_the_command_line_prints():
    assert ruff_codes("harness/study.py", "print(1)\n") == {"T201"}
    assert ruff_codes("harness/cli.py", "print(1)\n") == set()
