"""Contracts for sources, ops and bridges of one's own, as classes of tests to be inherited; needs pytest.

    from gpuload.testing.sources import SourceContract       reading, slices, splits, pickles, threads, closing
    from gpuload.testing.ops import OpContract               the array form, DALI, any batch size, the GPU
    from gpuload.testing.bridges import BridgeContract       order, position, memory, errors, fields

``pytest.register_assert_rewrite("gpuload.testing")`` in a ``conftest.py``, before the import, has
pytest show the values of an assertion that fails.
"""
