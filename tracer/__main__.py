"""``python -m tracer``."""

import sys

from tracer.commands.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
