"""What a worker inherits, which interpreter runs it, and what is told about the machine."""

import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy
import psutil
import pytest

from harness.config import RunConfig
from harness.cpu import cpu_features
from harness.environment import describe_environment, usable_cpus, worker_variables
from harness.interpreters import choose_interpreters

REPOSITORY = str(Path(__file__).resolve().parent.parent)


def variables(inherited: dict[str, str], **changes: Any) -> dict[str, str]:
    run = RunConfig.model_validate({"backend": "fake", "steps": 3} | changes)
    return worker_variables(run, inherited)


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "LANG",
        "LC_ALL",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_HOME",
        "NVIDIA_VISIBLE_DEVICES",
        "CONDA_PREFIX",
        "XDG_CACHE_HOME",
        "AMP_HARNESS_CACHE",
    ],
)
def test_a_worker_inherits_where_things_are(name: str):
    assert variables({name: "/some/where"})[name] == "/some/where"


@pytest.mark.parametrize(
    "name",
    [
        # Each of these chooses other kernels and would tell the arms of two shells apart.
        "NVIDIA_TF32_OVERRIDE",
        "TF_XLA_FLAGS",
        "TF_ENABLE_ONEDNN_OPTS",
        "FLAGS_cudnn_deterministic",
        "XLA_FLAGS",
        "KERAS_BACKEND",
        "MKL_CBWR",
        "OMP_SCHEDULE",
        "KMP_AFFINITY",
        "TORCH_LOGS",
        "PYTORCH_CUDA_ALLOC_CONF",
        "LD_PRELOAD",
        "PYTHONSTARTUP",
        "AWS_SECRET_ACCESS_KEY",
    ],
)
def test_a_worker_does_not_inherit_what_steers_kernels_or_is_none_of_its_business(name: str):
    assert name not in variables({name: "1"})


def test_thread_counts_are_set_for_every_library_whatever_the_shell_says():
    given = variables({"OMP_NUM_THREADS": "64", "MKL_NUM_THREADS": "64"}, threads=3)

    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        assert given[name] == "3"


def test_without_a_choice_there_are_as_many_threads_as_usable_cpus():
    assert variables({})["OMP_NUM_THREADS"] == str(usable_cpus())


@pytest.mark.skipif(sys.platform != "linux", reason="CPU affinity is asked of Linux")
def test_usable_cpus_are_those_the_process_may_run_on():
    allowed = psutil.Process().cpu_affinity()
    psutil.Process().cpu_affinity(allowed[:1])
    try:
        assert usable_cpus() == 1
    finally:
        psutil.Process().cpu_affinity(allowed)
    assert usable_cpus() == len(os.sched_getaffinity(0))


def test_deterministic_kernels_get_the_cublas_workspace_they_need():
    # NVIDIA cuBLAS, "Results Reproducibility": :4096:8 or :16:8.
    assert variables({}, deterministic=True)["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "CUBLAS_WORKSPACE_CONFIG" not in variables({})


def test_a_worker_finds_the_code_of_its_parent_first():
    path = variables({"PYTHONPATH": "/mine"})["PYTHONPATH"].split(os.pathsep)

    assert path == [REPOSITORY, "/mine"]
    assert variables({})["PYTHONPATH"] == REPOSITORY


def test_devices_are_numbered_as_nvidia_smi_shows_them():
    assert variables({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_the_machine_is_described_as_its_system_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setenv("HF_TOKEN", "secret")

    told = describe_environment()

    assert told.python == platform.python_version()
    assert told.cpus_usable == usable_cpus()
    assert told.memory_bytes == psutil.virtual_memory().total
    assert told.packages["numpy"] == numpy.__version__
    assert told.variables["OMP_NUM_THREADS"] == "5"
    assert "secret" not in told.model_dump_json()
    assert told.cpu
    assert told.cpu_features == cpu_features()


def make_interpreter(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True)
    path.touch(mode=0o755)
    return path


def test_a_named_interpreter_comes_before_an_environment_and_that_before_the_running_one(
    tmp_path: Path,
):
    own = make_interpreter(tmp_path, ".venv-torch/bin/python")
    make_interpreter(tmp_path, ".venv-paddle/bin/python")
    named = make_interpreter(tmp_path, "elsewhere/python")

    chosen = choose_interpreters(
        ["torch", "paddle", "tensorflow"], [f"paddle={named}"], folder=tmp_path
    )

    assert chosen == {"torch": str(own), "paddle": str(named), "tensorflow": sys.executable}


def test_the_link_of_an_environment_stays_a_link(tmp_path: Path):
    (tmp_path / ".venv-torch" / "bin").mkdir(parents=True)
    link = tmp_path / ".venv-torch" / "bin" / "python"
    link.symlink_to(sys.executable)

    assert choose_interpreters(["torch"], [], folder=tmp_path) == {"torch": str(link)}


def test_a_relative_interpreter_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    named = make_interpreter(tmp_path, "env/python")
    monkeypatch.chdir(tmp_path)

    assert choose_interpreters([], ["torch=env/python"], folder=tmp_path) == {"torch": str(named)}


@pytest.mark.parametrize("given", ["torch", "torch=", "=/bin/sh", "touch=/bin/sh"])
def test_an_interpreter_that_is_not_understood_is_refused_with_an_example(
    given: str, tmp_path: Path
):
    with pytest.raises(ValueError, match=r"--python .*BACKEND=PATH.*torch=") as caught:
        choose_interpreters(["torch", "fake"], [given], folder=tmp_path)

    assert given in str(caught.value)
