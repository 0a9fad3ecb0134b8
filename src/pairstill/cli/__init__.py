"""The command line: `main` dispatches, `parser` reads options, `commands` act, `demo` runs all stages."""
