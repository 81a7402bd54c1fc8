"""The fuzzer of the core: what builds its targets, gives them inputs to begin with, and runs
them."""
