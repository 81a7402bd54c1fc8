"""Where threads start (`threads.py`), and where imports are done out of the reach of signals (`aside.py`)."""
