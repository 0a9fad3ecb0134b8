"""The command line: `main` parses, `commands` does, `demo` is the whole way on embedded data."""
