"""``python -m gpuload`` is the command ``gpuload``."""

import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the imports without a traceback

from gpuload.cli import main

sys.exit(main())
