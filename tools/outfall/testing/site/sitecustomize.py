"""Python imports this in every process that has this directory on its path: it arms the crash points."""

import outfall.testing.crash_points  # noqa: F401 - importing arms them
