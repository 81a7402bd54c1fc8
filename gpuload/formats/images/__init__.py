"""Image files, and folders of them."""

from gpuload.formats.images.labels import Labels
from gpuload.formats.images.source import images

__all__ = ["Labels", "images"]
