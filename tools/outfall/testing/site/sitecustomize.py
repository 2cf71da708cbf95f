"""Arms the crash points. Python imports it in every process with this directory on the path."""

import outfall.testing.crash_points  # noqa: F401 - importing arms them
