"""The road of an exception from a worker to the training loop."""

from __future__ import annotations

import json
import pickle
import threading
from typing import Any

import pytest

from minato._errors import CapturedError, DatasetStopIteration, WorkerTraceback, unpicklable_path
from minato.errors import MinatoError

WHERE = "in DataLoader worker process 1, fetching sample index 5"


def journey(error: BaseException) -> BaseException:
    """Raise, capture, pickle, unpickle, rebuild: what happens to an error between two processes."""
    try:
        raise error
    except BaseException as caught:
        captured = CapturedError.capture(caught, WHERE)
    return pickle.loads(pickle.dumps(captured)).rebuild()


class TwoArguments(Exception):
    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"code {code} because {reason}")
        self.code = code
        self.reason = reason


class NoSuper(Exception):
    def __init__(self, a: int, b: int) -> None:
        self.total = a + b


class OwnNew(ValueError):
    def __new__(cls, a: Any, b: Any) -> OwnNew:
        return super().__new__(cls, a)

    def __init__(self, a: Any, b: Any) -> None:
        super().__init__(a + b)


class OwnText(Exception):
    def __str__(self) -> str:
        return f"<{self.args[0]}>"


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class PathError(OSError):
    """A constructor of its own over OSError, as libraries have."""

    def __init__(self, path: str) -> None:
        super().__init__(2, "no such thing", path)


class Outer:
    class Inner(LookupError):
        pass


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        ValueError(),
        ValueError("a", 2, [3]),
        KeyError("a\nb"),
        TwoArguments(3, reason="rain"),
        NoSuper(1, 2),
        OwnText("t"),
        Outer.Inner("nested"),
        json.JSONDecodeError("bad", "{", 1),
        MinatoError("ours"),
        PermissionError(13, "denied"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_keeps_its_type_arguments_text_and_attributes(error: Exception) -> None:
    found = journey(error)
    assert type(found) is type(error)
    assert repr(found.args) == repr(error.args)
    assert str(found) == str(error)
    assert {k: v for k, v in vars(found).items() if k != "__notes__"} == vars(error)


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (FileNotFoundError(2, "No such file", "/data/1.png"), ["errno", "strerror", "filename"]),
        (OSError(18, "cross-device", "/a", None, "/b"), ["errno", "filename", "filename2"]),
        (PathError("/data/2.png"), ["errno", "strerror", "filename"]),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), ["encoding", "object", "start", "reason"]),
        (SyntaxError("bad", ("f.py", 3, 1, "x =")), ["msg", "filename", "lineno"]),
        (ImportError("no", name="thing", path="/p"), ["name", "path"]),
        (AttributeError("no", name="thing"), ["name"]),
    ],
    ids=["OSError", "two filenames", "subclass of OSError", "UnicodeDecodeError", "SyntaxError", "ImportError", "name"],
)
def test_fields_that_builtin_errors_keep_outside_their_dict_come_along(error: Exception, names: list[str]) -> None:
    found = journey(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert {name: getattr(found, name) for name in names} == {name: getattr(error, name) for name in names}


def test_where_and_the_workers_traceback_come_along() -> None:
    found = journey(ValueError("x"))
    assert found.__notes__ == [f"raised {WHERE}"]
    assert isinstance(found.__cause__, WorkerTraceback)
    text = str(found.__cause__)
    assert f"Caught ValueError {WHERE}." in text
    assert "raise error" in text and "test_errors.py" in text


def test_notes_come_first() -> None:
    error = ValueError("x")
    error.add_note("first")
    error.add_note("second")
    assert journey(error).__notes__ == ["first", "second", f"raised {WHERE}"]


def test_the_cause_in_the_worker_is_in_the_text() -> None:
    try:
        raise ValueError("inner")
    except ValueError as inner:
        error = RuntimeError("outer")
        error.__cause__ = inner
    assert "ValueError: inner" in str(journey(error).__cause__)


def test_parts_that_cannot_be_pickled_become_text() -> None:
    lock = threading.Lock()
    error = ValueError("x", lock, [lambda: 1])
    error.handle = lock  # type: ignore[attr-defined]
    error.number = 5  # type: ignore[attr-defined]
    found = journey(error)
    assert found.args[:2] == ("x", str(lock))
    assert "lambda" in found.args[2]
    assert (found.handle, found.number) == (str(lock), 5)  # type: ignore[attr-defined]


class Unreadable:
    """Pickles, but does not unpickle."""

    def __reduce__(self) -> Any:
        return int, ("not a number",)

    def __str__(self) -> str:
        return "unreadable"


def test_parts_that_only_pickle_one_way_become_text() -> None:
    assert journey(ValueError(Unreadable())).args == ("unreadable",)


def test_an_error_without_text_still_arrives() -> None:
    captured = CapturedError.capture(NoText("a"), WHERE)
    assert captured.message == "<NoText without text>"
    assert type(captured.rebuild()) is NoText


def test_a_class_that_cannot_be_found_is_replaced_by_its_nearest_base() -> None:
    class Local(KeyError):
        pass

    class MoreLocal(Local):
        pass

    found = journey(MoreLocal("k"))
    assert type(found) is KeyError
    assert "MoreLocal: 'k'" in found.args[0]


def test_a_class_with_a_new_of_its_own_is_replaced_by_its_base() -> None:
    found = journey(OwnNew(1, 2))
    assert type(found) is ValueError
    assert "OwnNew" in str(found)


def test_stop_iteration_does_not_end_the_users_loop() -> None:
    class Local(StopIteration):
        pass

    for error in (StopIteration(3), Local()):
        found = journey(error)
        assert type(found) is DatasetStopIteration
        assert str(found) == f"StopIteration was raised {WHERE}"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=["interrupt", "exit"])
def test_what_is_not_an_exception_arrives_too(error: BaseException) -> None:
    assert type(journey(error)) is type(error)


# ---- what cannot be pickled ----------------------------------------------------------------------------------------


class Holder:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class CallableHolder(Holder):
    """As transforms are: called, and made of parts."""

    def __call__(self, value: Any) -> Any:
        return value


def broken() -> Any:
    return threading.Lock()


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        (Holder(a=1), "dataset"),
        (Holder(a=1, lock=broken()), "dataset.lock"),
        (Holder(transform=Holder(fn=lambda: 1)), "dataset.transform.fn"),
        (Holder(parts=[1, Holder(x={"k": (broken(),)})]), "dataset.parts[1].x['k'][0]"),
        ({3: broken()}, "dataset[3]"),
        (broken(), "dataset"),
        (Holder(transform=CallableHolder(transforms=[1, lambda: 1])), "dataset.transform.transforms[1]"),
    ],
    ids=["fine", "attribute", "nested", "deep", "dict", "itself", "inside a callable"],
)
def test_the_part_that_cannot_be_pickled_is_named(root: Any, expected: str) -> None:
    assert unpicklable_path(root, "dataset") == expected


def test_a_part_that_refers_back_is_not_followed_in_circles() -> None:
    root = Holder()
    root.parent = Holder(child=root)  # type: ignore[attr-defined]
    root.lock = broken()  # type: ignore[attr-defined]
    path = unpicklable_path(root, "dataset")
    assert path.endswith(".lock")
    assert len(path) < 100


def test_the_search_is_bounded() -> None:
    root = Holder(items=[*range(50), broken()])
    assert unpicklable_path(root, "dataset", limit=10) == "dataset.items"
