"""Which cluster is meant, and who can reach one that is started here."""

import socket
from pathlib import Path

import pytest

from minato.offload._agent_main import no_cluster
from minato.offload._finding import AUTO, LOCAL, Found, find_cluster, keep_to_loopback, settle
from minato.offload._wire import Setup

SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def test_an_address_that_is_given_is_taken_whatever_else_there_is(tmp_path: Path) -> None:
    environment = {"RAY_ADDRESS": "10.0.0.9:6379", "RAY_TMPDIR": str(_started(tmp_path, "10.0.0.8:6379"))}
    for given in ("auto", "local", "10.0.0.1:6379", "ray://head:10001"):
        assert find_cluster(given, "10.0.0.7:6379", environment) == Found(given)


def test_without_an_address_it_is_the_programs_own_cluster_then_the_named_one_then_the_last_started(
    tmp_path: Path,
) -> None:
    started = {"RAY_TMPDIR": str(_started(tmp_path, "10.0.0.8:6379\n"))}
    named = {**started, "RAY_ADDRESS": "10.0.0.9:6379"}
    assert find_cluster(None, "10.0.0.7:6379", named) == Found("10.0.0.7:6379")
    assert find_cluster(None, None, named) == Found("10.0.0.9:6379")
    assert find_cluster(None, None, started) == Found("10.0.0.8:6379", or_local=True)
    assert find_cluster(None, None, {"RAY_TMPDIR": str(tmp_path / "nothing")}) == Found(LOCAL)


def test_a_cluster_that_has_ended_is_replaced_by_one_of_our_own_but_only_if_nobody_named_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert settle(Found(address, or_local=True), {}) == AUTO, "by this name Ray finds its token as well"
    assert settle(Found(address, or_local=True), {}) == LOCAL
    assert settle(Found("what is this", or_local=True), {}) == LOCAL


@pytest.mark.parametrize("given", ["{}", "ray://{}", "auto", "localhost:{port}"])
def test_an_address_where_nobody_listens_is_told_at_once(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself would try for minutes."""
    monkeypatch.setattr("minato.offload._finding._is_raylet_here", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        place = f"127.0.0.1:{port}"
        environment = {"RAY_TMPDIR": str(_started(tmp_path, place))} if given == "auto" else {}
        address = given.format(place, port=port)
        assert settle(Found(address), environment) == address
    with pytest.raises(ConnectionError, match=f"nobody listens at .*{port}"):
        settle(Found(address), environment)


def test_the_cluster_of_ray_start_is_joined_as_such_also_by_its_address(tmp_path: Path) -> None:
    """Ray finds its token by that name only. Others, and what the user has named otherwise, are left as they are."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        environment = {"RAY_TMPDIR": str(_started(tmp_path, f"127.0.0.1:{port}"))}
        for given in (f"127.0.0.1:{port}", f"localhost:{port}"):
            assert settle(Found(given), environment) == AUTO
        named = {**environment, "RAY_ADDRESS": f"127.0.0.1:{port}"}
        assert settle(Found(f"127.0.0.1:{port}"), named) == f"127.0.0.1:{port}"
        assert settle(Found(f"ray://127.0.0.1:{port}"), environment) == f"ray://127.0.0.1:{port}"
        joined = dict(environment)
        keep_to_loopback(AUTO, joined)
        assert joined[SWITCH] == "0", "it is on the loopback, so it is looked for there"


def test_without_a_cluster_of_ray_start_ray_is_left_to_look() -> None:
    for address in ("auto", "plugin://somewhere"):
        assert settle(Found(address), {"RAY_TMPDIR": "/nonexistent"}) == address


def test_a_cluster_of_this_machine_alone_listens_to_this_machine_alone() -> None:
    """Ray's switch for that; the user's own setting goes first, and clusters that are joined are as they are."""
    ours: dict[str, str] = {}
    keep_to_loopback(LOCAL, ours)
    assert ours == {SWITCH: "0"}
    joined: dict[str, str] = {}
    keep_to_loopback("10.0.0.1:6379", joined)
    assert not joined
    users = {SWITCH: "1"}
    keep_to_loopback(LOCAL, users)
    assert users == {SWITCH: "1"}


def test_why_there_is_no_cluster_is_said_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's client server sends one along: what happened is in its last line."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    error = ConnectionAbortedError(
        "failure from server:\nTraceback (most recent call last):\n  File\nRuntimeError: no."
    )
    text = no_cluster(_setup("ray://127.0.0.1:1"), error)
    assert text.startswith("no Ray cluster: ConnectionAbortedError: failure from server: RuntimeError: no; one that")
    assert "\n" not in text
    assert no_cluster(_setup(LOCAL), ConnectionError()) == "no Ray cluster: ConnectionError: "


def _started(directory: Path, address: str) -> Path:
    """A directory as `ray start` leaves it."""
    (directory / "ray").mkdir()
    (directory / "ray" / "ray_current_cluster").write_text(address)
    return directory


def _setup(address: str) -> Setup:
    return Setup(address, False, 1, 1, None, 1.0, 1, None, None, "minato", None, None)
