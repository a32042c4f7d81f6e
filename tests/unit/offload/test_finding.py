"""Which cluster is meant, and who can reach one that is started here."""

import socket
from pathlib import Path

import pytest

from minato.offload._agent_main import no_cluster
from minato.offload._finding import AUTO, LOCAL, Found, adopt, find_cluster, settle
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
    monkeypatch.setattr("minato.offload._finding._raylets", list)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        place = f"127.0.0.1:{port}"
        environment = {"RAY_TMPDIR": str(_started(tmp_path, place))} if given == "auto" else {}
        address = given.format(place, port=port)
        assert settle(Found(address), environment) == address
    with pytest.raises(ConnectionError, match=f"nobody listens at .*{port}"):
        settle(Found(address), environment)


def test_without_a_cluster_of_ray_start_ray_is_left_to_look() -> None:
    for address in ("auto", "plugin://somewhere"):
        assert settle(Found(address), {"RAY_TMPDIR": "/nonexistent"}) == address


def test_a_cluster_of_this_machine_alone_listens_to_this_machine_alone() -> None:
    """Ray's switch for that; the user's own setting goes first."""
    ours: dict[str, str] = {}
    adopt(LOCAL, ours)
    assert ours == {SWITCH: "0"}
    users = {SWITCH: "1"}
    adopt(LOCAL, users)
    assert users == {SWITCH: "1"}


def test_a_cluster_is_joined_as_its_nodes_on_this_machine_have_joined_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a token if they have one, and without if not, whatever Ray would guess from the address."""
    nodes = [("10.0.0.8:1", {"RAY_AUTH_MODE": "token"}), ("127.0.0.1:2", {SWITCH: "0"})]
    monkeypatch.setattr("minato.offload._finding._raylets", lambda: nodes)
    started = {"RAY_TMPDIR": str(_started(tmp_path, "127.0.0.1:2"))}

    def adopted(address: str, **environment: str) -> dict[str, str]:
        after = dict(environment)
        adopt(address, after)
        return {name: value for name, value in after.items() if name in (SWITCH, "RAY_AUTH_MODE")}

    assert adopted("10.0.0.8:1") == {"RAY_AUTH_MODE": "token"}
    assert adopted("127.0.0.1:1") == {"RAY_AUTH_MODE": "token"}, "this machine's, by another name"
    assert adopted("localhost:2") == {"RAY_AUTH_MODE": "disabled", SWITCH: "0"}
    assert adopted("auto", **started) == {"RAY_AUTH_MODE": "disabled", SWITCH: "0"}
    assert adopted("auto", **started, RAY_ADDRESS="10.0.0.8:1") == {"RAY_AUTH_MODE": "token"}
    assert adopted("10.0.0.8:1", RAY_AUTH_MODE="disabled") == {"RAY_AUTH_MODE": "disabled"}, "the user's"
    for elsewhere in ("10.0.0.9:1", "ray://10.0.0.8:10001"):
        assert adopted(elsewhere) == {}


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
