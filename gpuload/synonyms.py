"""Synonyms: attributes that tf.data, torch and pandas have, and the form of gpuload that does the same.

They are no attributes: ``hasattr`` is False, and the answer is the error of a program that uses one. Nothing here is
called for an attribute that is there.
"""

from __future__ import annotations

from gpuload.errors import UnknownAttributeError

LOADER = {
    "as_numpy_iterator": "for batch in loader: the batches are NumPy arrays already",
    "batch": "gl.Loader(source, batch_size=64)",
    "columns": "loader.spec_out.names",
    "dataset": "loader.source, or gltf.dataset(loader) for model.fit (from gpuload.bridges import tensorflow as gltf)",
    "dtype": "loader.spec_out, which has the dtype of each field",
    "enumerate": "for batch in loader: batch.step counts from 0",
    "filter": "gl.Loader(source.filter(function), ...)",
    "get_next": "batches = iter(loader), and next(batches); loader.peek() looks at the next batch",
    "head": "loader.peek(), which looks at the next batch",
    "keys": "loader.spec_out.names",
    "map": "gl.Loader(source, ops=[gl.ops.Python(function)], ...)",
    "next": "batches = iter(loader), and next(batches); loader.peek() looks at the next batch",
    "repeat": "for epoch in range(10): for batch in loader; gltf.dataset(loader).repeat() for model.fit",
    "reset": "loader.replace(), a new loader at its beginning; loader.epoch(0) is epoch 0 from its beginning",
    "set_epoch": "each for is the next epoch; loader.load_state_dict(loader.state_dict(epoch)) goes to one",
    "shape": "loader.spec_out, which has the shape of each field",
    "shard": "gl.Loader(source, shard_id=rank, num_shards=ranks, ...)",
    "shuffle": "gl.Loader(source, shuffle=True, seed=1, ...)",
    "skip": "loader.load_state_dict(loader.state_dict(epoch=0, step=100))",
    "take": "itertools.islice(loader, 100) for steps; gl.Loader(source[:1000], ...) for records",
    "unbatch": "for record in loader.source",
}
SOURCE = {
    "as_numpy_iterator": "source.read([3, 1, 4]), a dict of NumPy arrays",
    "batch": "gl.Loader(source, batch_size=64)",
    "columns": "source.spec.names",
    "concat": "gl.concat(source, other)",
    "concatenate": "gl.concat(source, other)",
    "dtype": "source.spec, which has the dtype of each field",
    "enumerate": "gl.zip(source, gl.arrays(number=numpy.arange(len(source))))",
    "head": "source.read(range(5))",
    "iloc": "source[i], or source.read([3, 1, 4])",
    "items": "source.read(range(len(source))).items()",
    "keys": "source.spec.names",
    "map": "gl.Loader(source, ops=[gl.ops.Python(function)], ...)",
    "numpy": "source.read(range(len(source)))",
    "peek": "source[0], or source.read(range(5))",
    "prefetch": "gl.Loader(source, ...), which reads ahead",
    "repeat": "for epoch in range(10): for batch in loader",
    "shape": "len(source), and source.spec, which has the shape of each field",
    "shard": "gl.Loader(source, shard_id=rank, num_shards=ranks, ...), or source[rank::ranks]",
    "shuffle": "gl.Loader(source, shuffle=True, seed=1, ...)",
    "skip": "source[100:]",
    "state_dict": "loader.state_dict(), with loader = gl.Loader(source, ...)",
    "take": "source[:100]",
    "to_numpy": "source.read(range(len(source)))",
    "values": "source.read(range(len(source))).values()",
    "zip": "gl.zip(source, other)",
}


def answer(owner: str, name: str, forms: dict[str, str]) -> None:
    """Raise ``UnknownAttributeError`` with our form of an attribute that is not there; return if none is known."""
    if name in forms:
        raise UnknownAttributeError(
            f"{owner}.{name}", cause=f"a {owner} has no attribute {name!r}", remedy=f"write {forms[name]}"
        )
