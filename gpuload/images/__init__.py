"""Encoded images: their heads (`head`) and their pixels (`decode`)."""
