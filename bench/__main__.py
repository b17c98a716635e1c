"""``python -m bench``: the command ``bench_frameworks``."""

import sys

from bench.cli import main

sys.exit(main())
