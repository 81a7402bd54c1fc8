"""The command ``gpuload`` from its first line on: Ctrl-C ends it without a traceback also during
its imports.

This module is not in the package: Python imports a package before its modules, and `gpuload`
imports NumPy, in 0.1 s. ``python -m gpuload`` begins with the package, which has the same in its
first lines.
"""


def main() -> int:
    """Run the command line and return its exit status."""
    try:
        import signal

        if (
            signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):  # not if this process ignores Ctrl-C
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        return 130
    from gpuload.cli import main as run

    return run()
