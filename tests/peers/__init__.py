"""What other projects demand of themselves, asked of gpuload: `make test-peers`.

Cases come from the tests that a project's package brings, or, where it brings none, are said anew
with their origin. Each module lists in ``DIFFERENT`` what gpuload does otherwise on purpose, and
why.
"""
