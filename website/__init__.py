"""The documentation site: hooks of MkDocs, and the pictures of its pages."""
