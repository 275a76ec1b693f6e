"""``python -m tracer.checks.conformance``."""

import sys

from tracer.checks.conformance.command import main

if __name__ == "__main__":
    sys.exit(main())
