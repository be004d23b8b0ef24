"""The version, which rooms need that must not import the package itself."""

__version__ = "0.1.0"
