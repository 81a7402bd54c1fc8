"""CSV files as a source: `gl.csv`.

source.py     the call, and the records
columns.py    the user's arguments: the form of the text, columns, types, defaults
lines.py      a file as blocks of whole records; a scan that knows fields and lines exactly
parse.py      a block of text as typed columns; the only importer of PyArrow
kinds.py      the types that the columns of all files have, found block by block
rows.py       typed columns as rows of one size, block by block
table.py      the file that these rows are kept in
faults.py     which line is wrong, and why
"""
