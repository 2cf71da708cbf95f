"""The command line, `outfall`: see into a step's recovery data, and act on it while its query does not run."""
