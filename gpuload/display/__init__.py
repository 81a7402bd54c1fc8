"""Display: sources, loaders and batches as a notebook shows them: tables of HTML with small
pictures.

Size      is bounded: a few records of a batch, a few fields, pictures of few pixels, the beginning
          of texts and arrays.
Copies    of a batch on a GPU are made of these parts alone, which are cut out on the GPU.
Reading   No record is read. An encoded image that a batch holds is decoded, up to a limit.
Escaping  Names of files and fields, and texts of records, are escaped; nothing is loaded from
          elsewhere.
Errors    A value that cannot be shown is shown as its error: a table never raises one.
"""
