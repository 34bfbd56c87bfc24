"""Backends by name: found without importing, refused with the remedy."""

import importlib.util
import sys

import pytest

from harness.protocol import Unsupported
from harness.registry import BACKENDS, COMPARED, BackendEntry, is_installed, load_backend


def test_the_fake_backend_needs_no_framework():
    assert is_installed("fake")
    assert load_backend("fake").name == "fake"


def test_the_three_frameworks_are_compared_and_the_fake_is_not():
    assert set(COMPARED) == {"torch", "tensorflow", "paddle"}
    assert set(BACKENDS) == {*COMPARED, "fake"}


@pytest.mark.parametrize("name", BACKENDS)
def test_the_module_of_every_adapter_exists(name: str):
    module, _, attribute = BACKENDS[name].adapter.partition(":")
    found = importlib.util.find_spec(module)

    assert found is not None
    assert found.origin is not None
    with open(found.origin, encoding="utf-8") as source:
        assert f"class {attribute}:" in source.read()


def test_asking_whether_a_framework_is_installed_imports_nothing():
    before = set(sys.modules)

    for name in BACKENDS:
        is_installed(name)

    assert not (set(sys.modules) - before) & {"torch", "tensorflow", "keras", "paddle"}


def test_a_framework_that_is_not_installed_is_told_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
):
    absent = BackendEntry(adapter="nowhere:Nothing", framework="no_such_framework", extra="torch")
    monkeypatch.setitem(BACKENDS, "torch", absent)

    assert not is_installed("torch")
    with pytest.raises(Unsupported, match=r"no_such_framework is not installed.*pip install"):
        load_backend("torch")
