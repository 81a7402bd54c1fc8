"""Sources: records by number, and the parts that all sources share; the sources of files are in
`formats`."""
