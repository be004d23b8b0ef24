"""Models as users give them with `--model`."""
