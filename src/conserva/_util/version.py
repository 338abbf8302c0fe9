"""The version of this package, which need not be installed to be imported."""

__version__ = "0.1.0"
