"""``python -m tracer.checks.compiled_steps``."""

import sys

from tracer.checks.compiled_steps.command import main

if __name__ == "__main__":
    sys.exit(main())
