"""python -m lowtide: the command line without its script."""

import sys

from lowtide.cli import main

sys.exit(main())
