"""Ops of colour: values of pixels change, and pixels stay where they are."""
