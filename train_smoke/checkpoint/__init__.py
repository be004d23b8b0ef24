"""Saving in the middle of a training, and going on from what was saved.

`run` does it for a strategy and a form; `forms` are the ways to write and read, `files` what arrives on disk, `compare`
what differs after loading.
"""
