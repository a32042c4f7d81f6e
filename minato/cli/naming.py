"""What `module:name` on a command line means: the object, or what it makes when called. Mistakes in it are told."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from .errors import UserError


def named(spec: str, what: str) -> Any:
    """The object that `spec` names, `module:name`; modules of the current directory are found. `what` asks for it."""
    module_name, colon, path = spec.partition(":")
    if not colon or not module_name or not path:
        raise UserError(f"{what} is needed as MODULE:NAME, such as train:make, got {spec!r}")
    found: Any = _imported(module_name, what)
    for part in path.split("."):
        if not hasattr(found, part):
            raise UserError(f"{what}: {module_name!r} has no {path!r}{_near(found)}")
        found = getattr(found, part)
    return found


def maker(spec: str, what: str) -> Callable[..., Any]:
    """The function that `spec` names."""
    found = named(spec, what)
    if not callable(found):
        raise UserError(f"{what}: {spec} is of type {type(found).__name__}, a function is needed")
    made: Callable[..., Any] = found
    return made


def made_by(spec: str, what: str) -> Any:
    """What the function that `spec` names returns, called without arguments."""
    function = maker(spec, what)
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise UserError(f"{what}: {spec}() raised {told(error)}") from error


def told(error: BaseException) -> str:
    """An error of the user's code in one line: its type, its text, and where it was raised."""
    text = " ".join(str(error).split()) or "(no text)"
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}, line {error.lineno})"
        text = error.msg
    else:
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{where}"


def _imported(module_name: str, what: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:  # it stays there: workers that are spawned import the module again
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):  # one that the module needs
            raise UserError(f"{what}: importing {module_name!r} raised {told(error)}") from error
        if module_name.endswith(".py"):
            remedy = f"; give the module's name, {module_name.removesuffix('.py').replace('/', '.')!r}"
        else:
            remedy = ""
        raise UserError(f"{what}: module {error.name!r} was not found from {here}{remedy}") from None
    except (Exception, SystemExit) as error:  # the latter of a script that reads its arguments when imported
        raise UserError(f"{what}: importing {module_name!r} raised {told(error)}") from error


def _near(found: Any) -> str:
    """What is there instead, for a name that was mistyped."""
    names = [name for name, value in vars(found).items() if callable(value) and not name.startswith("_")]
    return f"; it has {', '.join(sorted(names)[:8])}" if names else ""
