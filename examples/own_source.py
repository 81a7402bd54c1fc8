"""A reader of one's own: records out of an SQLite table, by number, shuffled, split and resumed
like any other.

python examples/own_source.py [folder]
"""

import sqlite3
import sys
import threading
from pathlib import Path

import numpy as np

import gpuload as gl

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "table")
folder.mkdir(exist_ok=True)
database = folder / "rows.db"
if not database.exists():  # some data
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, x BLOB, label INTEGER)")
        for number, x in enumerate(np.random.default_rng(0).random((500, 8), np.float32)):
            connection.execute(
                "INSERT INTO rows VALUES (?, ?, ?)", (number, x.tobytes(), number % 10)
            )

local = threading.local()  # a connection for each thread: the loader's threads call `read` at once


def read(indices):
    """Return the rows with these numbers, the records along the first axis, in the order that is
    asked."""
    if not hasattr(local, "connection"):
        local.connection = sqlite3.connect(database)
    x, label = np.empty((len(indices), 8), np.float32), np.empty(len(indices), np.int64)
    for place, number in enumerate(indices.tolist()):
        row = local.connection.execute(
            "SELECT x, label FROM rows WHERE number = ?", (number,)
        ).fetchone()
        x[place], label[place] = np.frombuffer(row[0], np.float32), row[1]
    return {"x": x, "label": label}


source = gl.records(
    500, read, version="rows.db of 2024-05"
)  # a state of another version is refused
train, held_out = source.split(0.8, seed=0)
loader = gl.Loader(train, batch_size=32, shuffle=True, seed=1)
for epoch in range(2):
    labels = np.concatenate([batch["label"] for batch in loader])
    print(f"epoch {epoch}: {len(labels)} records, the first labels are {labels[:5].tolist()}")
assert len(held_out) == 100
assert loader.batch_at(3, epoch=1)["x"].shape == (32, 8)
