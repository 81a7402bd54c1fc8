"""Heads of encoded images, a module for each format; `images.head` chooses among them."""
