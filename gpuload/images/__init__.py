"""Encoded images: what their heads say (`head`) and their pixels (`decode`)."""
