"""env: which commands make an environment per framework, and that nothing is deleted."""

import platform
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness import env_command
from harness.cli import main
from harness.env_command import REQUIREMENTS, commands, is_ready, make
from harness.interpreters import choose_interpreters, environment_python

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = Path("/checkout")


class Runner:
    """Notes the commands; makes an environment's interpreter as venv and uv do."""

    def __init__(self, *, failing: str = "nothing") -> None:
        self.failing = failing
        self.ran: list[str] = []

    def __call__(self, command: Sequence[str]) -> int:
        text = " ".join(command)
        self.ran.append(text)
        if self.failing in text:
            return 1
        if "venv" in command:
            interpreter = Path(command[-1]) / "bin" / "python"
            interpreter.parent.mkdir(parents=True)
            interpreter.write_text("#!/bin/sh\nexit 1\n")
            interpreter.chmod(0o755)
        return 0


def made(folder: Path, backend: str, *, framework: bool) -> Path:
    """An environment whose interpreter finds the framework, or not."""
    interpreter = folder / f".venv-{backend}" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text(f"#!/bin/sh\nexit {0 if framework else 1}\n")
    interpreter.chmod(0o755)
    return interpreter


def test_without_uv_an_environment_is_made_with_venv_and_pip(tmp_path: Path):
    run = Runner()
    target = tmp_path / ".venv-torch"

    assert make("torch", "cuda", folder=tmp_path, project=PROJECT, uv=None, run=run) is None
    assert run.ran == [
        f"{sys.executable} -m venv {target}",
        f"{target}/bin/python -m pip install -e /checkout",
        f"{target}/bin/python -m pip install torch>=2.5",
    ]


def test_with_uv_it_does_the_same(tmp_path: Path):
    run = Runner()
    target = tmp_path / ".venv-paddle"
    make("paddle", "cpu", folder=tmp_path, project=PROJECT, uv=("uv",), run=run)

    assert run.ran == [
        f"uv venv --python {sys.executable} {target}",
        f"uv pip install --python {target} -e /checkout",
        f"uv pip install --python {target} paddlepaddle>=3.0",
    ]


def test_what_was_made_is_what_the_other_commands_use(tmp_path: Path):
    run = Runner()
    make("torch", "cpu", folder=tmp_path, project=PROJECT, uv=None, run=run)

    chosen = choose_interpreters(["torch"], [], folder=tmp_path)

    assert chosen["torch"] == str(environment_python("torch", folder=tmp_path))


def test_a_failed_step_ends_it_and_the_next_try_goes_on_from_there(tmp_path: Path):
    first, second = Runner(failing="torch>="), Runner()
    failed = make("torch", "cuda", folder=tmp_path, project=PROJECT, uv=None, run=first)
    make("torch", "cuda", folder=tmp_path, project=PROJECT, uv=None, run=second)

    assert failed is not None
    assert failed[-1] == "torch>=2.5"
    assert not any("venv " in command for command in second.ran)
    assert len(second.ran) == 2


@pytest.mark.parametrize(
    ("backend", "device", "words"),
    [
        ("torch", "cpu", "torch>=2.5 --index-url https://download.pytorch.org/whl/cpu"),
        ("tensorflow", "cuda", "tensorflow[and-cuda]>=2.18"),
        ("paddle", "cuda", "paddlepaddle-gpu>=3.0 --index-url https://www.paddlepaddle.org.cn/"),
    ],
)
def test_each_device_gets_its_build(tmp_path: Path, backend: str, device: str, words: str):
    last = [*commands(backend, device, folder=tmp_path, project=PROJECT, uv=("uv",))][-1]

    assert words in " ".join(last)


def test_tensorflows_build_without_cuda_is_taken_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def requirement() -> str:
        return [*commands("tensorflow", "cpu", folder=tmp_path, project=PROJECT, uv=None)][-1][-1]

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert requirement() == "tensorflow-cpu>=2.18"
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert requirement() == "tensorflow>=2.18"


def test_the_versions_are_those_of_the_projects_extras():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    for (backend, _), requirement in REQUIREMENTS.items():
        (extra,) = project["optional-dependencies"][backend]
        assert requirement[0].partition(">=")[2] == extra.partition(">=")[2]


def test_an_environment_is_ready_once_its_interpreter_finds_the_framework(tmp_path: Path):
    assert not is_ready("torch", folder=tmp_path)
    made(tmp_path, "torch", framework=True)
    made(tmp_path, "paddle", framework=False)

    assert is_ready("torch", folder=tmp_path)
    assert not is_ready("paddle", folder=tmp_path)


# --- the command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(env_command, "find_uv", lambda: None)
    return tmp_path


def test_a_dry_run_prints_the_commands_and_makes_nothing(here: Path):
    result = CliRunner().invoke(main, ["env", "--dry-run", "--cpu", "--backend", "paddle"])

    assert result.exit_code == 0
    assert [line.split()[-1] for line in result.stdout.splitlines()] == [
        str(here / ".venv-paddle"),
        str(REPOSITORY),
        "'paddlepaddle>=3.0'",
    ]
    assert not any(here.iterdir())


def test_a_ready_environment_is_left_as_it_is(here: Path, monkeypatch: pytest.MonkeyPatch):
    made(here, "torch", framework=True)
    run = Runner()
    monkeypatch.setattr(env_command, "_run_command", run)

    result = CliRunner().invoke(main, ["env", "--backend", "torch"])

    assert result.exit_code == 0
    assert run.ran == []
    assert "left as it is" in result.stdout


def test_an_environment_without_its_framework_is_completed_not_made_anew(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    interpreter = made(here, "torch", framework=False)
    (interpreter.parent / "mine").write_text("kept")
    run = Runner()
    monkeypatch.setattr(env_command, "_run_command", run)

    CliRunner().invoke(main, ["env", "--backend", "torch", "--cuda"])

    assert len(run.ran) == 2
    assert (interpreter.parent / "mine").read_text() == "kept"


def test_a_failure_names_the_command_and_exits_1(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(env_command, "_run_command", Runner(failing="paddlepaddle"))

    result = CliRunner().invoke(main, ["env", "--cpu", "--backend", "paddle"])

    assert result.exit_code == 1
    assert "pip install 'paddlepaddle>=3.0'" in result.stderr
    assert "run the same command again" in result.stderr


def test_print_shows_which_environments_there_are(here: Path):
    ready = made(here, "torch", framework=True)
    half = made(here, "paddle", framework=False)

    result = CliRunner().invoke(main, ["env", "--print"])

    assert result.stdout.splitlines() == [
        f"torch: {ready}",
        f"tensorflow: no .venv-tensorflow here; {sys.executable} is used",
        f"paddle: {half} (without paddle)",
    ]
