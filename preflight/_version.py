"""The version, for all rooms: they import nothing from the package itself, which imports them."""

VERSION = "0.1.0"
