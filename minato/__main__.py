"""`python -m minato` is the command `minato`."""

import sys

from .cli import main

sys.exit(main())
