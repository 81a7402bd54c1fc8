"""Image files, and folders of them."""
