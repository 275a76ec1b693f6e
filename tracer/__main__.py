"""``python -m tracer``."""

import sys

from tracer.commands.command import main

sys.exit(main(sys.argv[1:]))
