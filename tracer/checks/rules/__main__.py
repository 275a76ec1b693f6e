"""``python -m tracer.checks.rules``."""

import sys

from tracer.checks.rules.command import main

if __name__ == "__main__":
    sys.exit(main())
