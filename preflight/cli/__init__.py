"""The command line: main dispatches commands, arguments parses them, api is `preflight.run()`."""
