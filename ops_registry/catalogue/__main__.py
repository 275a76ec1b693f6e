"""``python -m ops_registry.catalogue``."""

import sys

from ops_registry.catalogue.page import main

if __name__ == "__main__":
    sys.exit(main())
