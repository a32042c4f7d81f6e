"""The command line as its users meet it: help with examples, JSON everywhere, mistakes told in one line."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minato.cli import main, make_parser


def parsers(parser: argparse.ArgumentParser | None = None) -> Iterator[argparse.ArgumentParser]:
    """The parser of the command and those of all subcommands and actions."""
    parser = make_parser() if parser is None else parser
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from parsers(each)


def leaves() -> list[argparse.ArgumentParser]:
    return [each for each in parsers() if each.get_default("run") is not None]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of the user's in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    path = tmp_path / "a_users_module.py"
    path.write_text(
        "def bad():\n    raise KeyError('no such column')\n"
        "def number():\n    return 3\n"
        "class Broken:\n"
        "    def __len__(self):\n        return 4\n"
        "    def __getitem__(self, index):\n        raise OSError('the disk is gone')\n"
        "class Odd(Broken):\n"
        "    def __getitem__(self, index):\n        return [0] * (index + 1)\n"
        "thing = 7\n"
    )
    (tmp_path / "a_broken_module.py").write_text("import sys\nx = undefined_name\n")
    yield path
    for name in ("a_users_module", "a_broken_module"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("parser", list(parsers()), ids=lambda parser: parser.prog)
def test_every_command_has_help_with_examples(parser: argparse.ArgumentParser) -> None:
    text = parser.format_help()
    assert "examples:" in text
    assert parser.description


@pytest.mark.parametrize("parser", leaves(), ids=lambda parser: parser.prog)
def test_every_command_prints_json_if_asked(parser: argparse.ArgumentParser) -> None:
    assert "--json" in parser.format_help()


@pytest.mark.parametrize("parser", list(parsers()), ids=lambda parser: parser.prog)
def test_the_examples_of_the_help_can_be_parsed(parser: argparse.ArgumentParser) -> None:
    """So that they do not outlive the options they show."""
    lines = [line.strip() for line in (parser.epilog or "").splitlines()]
    examples = [line.split("  ")[0] for line in lines if line.startswith("minato ")]
    assert examples
    for example in examples:
        words = example.split("#")[0].split(">")[0].split()[1:]
        assert make_parser().parse_args(words).run is not None, example


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diagnose", "nocolon"], "is needed as MODULE:NAME"),
        (["diagnose", "no_module_here:make"], "module 'no_module_here' was not found from"),
        (["diagnose", "a_users_module:absent"], "has no 'absent'; it has Broken, Odd, bad, number"),
        (["diagnose", "a_users_module:thing"], "is of type int, a function is needed"),
        (["diagnose", "a_users_module:bad"], "bad() raised KeyError: 'no such column' ("),
        (["diagnose", "a_users_module:number"], "returned a int; a DataLoader was needed"),
        (["diagnose", "a_broken_module:make"], "raised NameError: name 'undefined_name' is not defined ("),
        (["diagnose", "a_users_module:number", "--max-seconds", "0"], "--max-seconds must be above 0"),
        (["bench", "--mine", "a_users_module:bad"], "bad() raised KeyError"),
        (["bench", "--mine", "a_users_module:Broken"], "sample 0 of the dataset raised OSError: the disk is gone"),
        (["bench", "--mine", "a_users_module:Odd"], "give your collate_fn by --collate"),
        (["trace", "report", "absent"], "absent"),
        (["trace", "export", "absent"], "nothing to export"),
        (["trace", "map", "a_users_module:bad"], "raised KeyError"),
        (["top", "absent"], "absent"),
        (["top", "--refresh", "0"], "--refresh must be at least 0.05"),
        (["index", "bucket", "out.json"], "s3://"),
        (["index", "s3://bucket/", "nowhere/out.json"], "is not a directory"),
    ],
)
@pytest.mark.usefixtures("script")
def test_a_users_mistake_is_told_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.startswith("minato: ") and told.count("\n") == 1
    assert "Traceback" not in told


@pytest.mark.usefixtures("script")
def test_a_missing_extra_is_told_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["diagnose", "a_users_module:never_called"]) == 2
    assert capsys.readouterr().err == "minato: `minato diagnose` needs scipy: pip install 'minato[diagnose]'\n"


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """`minato doctor | head -1`: no traceback of a broken pipe, also not from the interpreter at its end."""
    with subprocess.Popen(
        [sys.executable, "-m", "minato", "doctor", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        told = process.stderr.read().decode()
        process.wait(timeout=90)
    assert told == ""
    assert process.returncode == 0


def test_doctor_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    assert code in (0, 1)
    assert "cores" in json.loads(capsys.readouterr().out)


def test_the_bare_command_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    told = capsys.readouterr().err
    assert "minato bench" in told and "minato doctor" in told
