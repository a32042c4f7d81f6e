"""Guards around every test, and the fixtures shared by all of them."""

import gc
import multiprocessing
import signal
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from tests.support.leaks import LeakCheck

# Time per example says more about the machine than about the code; hangs are caught by pytest-timeout.
hypothesis.settings.register_profile("minato", deadline=None)
hypothesis.settings.load_profile("minato")

_leak_check = LeakCheck()
_raised = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background by a shell: Ctrl-C is tested too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "leaks_ok(reason): this test may leave processes, threads or descriptors behind")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The libraries that integration tests import stay in the process, and every later fork takes longer for them: so
    # these come last, but for the file that takes longest by far, and most of that in processes of its own.
    items.sort(key=lambda item: (item.path.name != "test_offload_ray.py", item.path.parent.name == "integration"))


def pytest_collection_finish() -> None:
    # With torch loaded a full collection takes 150 ms; without what imports have made, a few.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.excinfo is not None:
        item.stash[_raised] = True
    return (yield)


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails any test that leaves something behind. Fixtures have to close what they open: this runs after them."""
    marker = request.node.get_closest_marker("leaks_ok")
    if marker is not None:
        if not (len(marker.args) == 1 and isinstance(marker.args[0], str) and marker.args[0].strip()):
            pytest.fail('leaks_ok needs a reason: @pytest.mark.leaks_ok("why")', pytrace=False)
        yield
        return
    before = _leak_check.snapshot()
    yield
    # The traceback of a failed, skipped or xfailed test keeps its frames alive, and with them its loader.
    if request.node.stash.get(_raised, False):
        return
    if leaks := _leak_check.compare(before):
        pytest.fail("the test leaked:\n" + "\n".join(f"  {leak}" for leak in leaks), pytrace=False)


@pytest.fixture(params=["fork", "forkserver", "spawn"])
def start_method(request: pytest.FixtureRequest) -> str:
    """Runs the test once per way of starting processes."""
    assert request.param in multiprocessing.get_all_start_methods()
    return str(request.param)
