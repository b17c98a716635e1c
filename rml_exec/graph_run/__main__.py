"""``python -m rml_exec.graph_run``."""

import sys

from rml_exec.graph_run.main import main

sys.exit(main())
