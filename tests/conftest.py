"""What all tests share: one framework per process, a cache of their own, the local test data."""

import importlib.util
import os
from pathlib import Path

import hypothesis
import pytest

# The package that is searched for, by marker.
FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "paddle": "paddle"}
IN_CI = os.environ.get("CI") == "true"
REFUSAL = pytest.StashKey[str]()
REPOSITORY = Path(__file__).resolve().parent.parent

# No deadline: no test asserts on time. In CI the same examples every time.
hypothesis.settings.register_profile("harness", deadline=None, derandomize=IN_CI)
hypothesis.settings.load_profile("harness")


def frameworks_of(item: pytest.Item) -> set[str]:
    """Return the framework markers that a test carries."""
    return {name for name in FRAMEWORKS if item.get_closest_marker(name)}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse a selection that would import two frameworks into this process.

    TensorFlow and then Paddle in one process ends in a segmentation fault, and every framework
    sets thread counts and memory as if it were alone.
    """
    selected = sorted(set().union(*(frameworks_of(item) for item in session.items)))
    if len(selected) < 2 or session.config.option.collectonly:
        return
    refusal = (
        f"tests of {', '.join(selected)} are selected together, but each framework needs a "
        "process of its own: run `make test` for all of them, or one alone, "
        f"such as `pytest -m {selected[0]}` "
        f"(and the core: `pytest -m 'not {' and not '.join(FRAMEWORKS)}'`)"
    )
    if hasattr(session.config, "workerinput"):
        # pytest-xdist takes an error here for a crash of its worker, so each test tells it.
        session.config.stash[REFUSAL] = refusal
    else:
        raise pytest.UsageError(refusal)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot run, with the reason; in CI a missing framework fails."""
    frameworks = frameworks_of(item)
    if frameworks and (refusal := item.config.stash.get(REFUSAL, None)):
        pytest.fail(refusal, pytrace=False)
    for name in sorted(frameworks):
        require_framework(name)
    if item.get_closest_marker("gpu") and (reason := why_no_gpu()):
        pytest.skip(reason)


def require_framework(name: str) -> None:
    """Skip the running test where framework `name` is not installed; in CI, fail it."""
    if importlib.util.find_spec(FRAMEWORKS[name]) is None:
        reason = f"{name} is not installed: pip install -e '.[{name}]'"
        if IN_CI:
            pytest.fail(f"{reason} (CI has every framework)", pytrace=False)
        pytest.skip(reason)


def why_no_gpu() -> str | None:
    """Return why no NVIDIA GPU can be used here, or None if one is there."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"no NVIDIA GPU: {error}"
    try:
        return None if pynvml.nvmlDeviceGetCount() else "no NVIDIA GPU: the driver lists none"
    finally:
        pynvml.nvmlShutdown()


@pytest.fixture
def needs_frameworks():
    """A function for tests that drive frameworks in child processes and so carry no marker.

    `needs_frameworks("torch", "paddle")` skips the test where one is not installed; in CI it fails.
    """

    def need(*names: str) -> None:
        for name in names:
            require_framework(name)

    return need


@pytest.fixture(scope="module")
def no_pauses():
    """Arms take turns at once: a pause between windows is for figures, and none is measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.turns.PAUSE_S", 0.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory):
    """Keep decoded images and downloads of the tests out of the user's own cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMP_HARNESS_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of local test photos; the test is skipped where it is absent, in CI too.

    The photos may not be redistributed. AMP_HARNESS_TEST_DATA names another folder.
    """
    named = os.environ.get("AMP_HARNESS_TEST_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no test photos at {folder}; AMP_HARNESS_TEST_DATA names another folder")
    return folder
