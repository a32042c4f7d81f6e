"""The command `minato`: one module of this package per subcommand.

A subcommand's module has `register(subparsers)`, which adds its parser and sets `run` to a function from the parsed
arguments to an exit code. Mistakes of the user are raised as `UserError` and told in one line, without a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from .._errors import InternalError, MinatoError
from .errors import UserError

COMMANDS: tuple[str, ...] = ("bench", "diagnose", "doctor", "index", "top", "trace")

_EXAMPLES = """examples:
  minato bench                             is it faster than torch's loader here?
  minato bench --mine train:make_dataset   and on my own data?
  minato diagnose train:make_loader        what bounds my loader?
  minato doctor                            what does this machine offer?

each command has --help with examples, and --json for machines
exit status: 0, what the command found (1), or 2 for a mistake in the call
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit code is 0, what the subcommand found, or 2 for a mistake in how it was called."""
    parser = make_parser()
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help(sys.stderr)  # more use to a newcomer than that a command is missing
        return 2
    parsed = parser.parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
    except UserError as error:
        sys.stderr.write(f"minato: {error}\n")
        return 2
    except InternalError:
        raise  # a mistake of ours: the traceback is what a report needs
    except (MinatoError, ImportError) as error:  # said for users already: what was not found, what to install
        sys.stderr.write(f"minato: {' '.join(str(error).split())}\n")
        return 2
    except BrokenPipeError:
        # Who reads us has seen enough (`| head`). Python flushes once more at exit: standard output must lead nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return code


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command. Subcommands import what they need when they run, so that `--help` is quick."""
    from .. import __version__

    parser = argparse.ArgumentParser(
        prog="minato",
        description="The tools of the minato data loader.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"minato {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        import_module(f".{command}", __package__).register(subparsers)
    return parser
