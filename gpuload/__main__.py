"""``python -m gpuload`` is the command ``gpuload``."""

import sys

from gpuload.cli import main

sys.exit(main())
