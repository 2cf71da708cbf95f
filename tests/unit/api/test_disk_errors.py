"""What a disk's errors tell their reader to do."""

from __future__ import annotations

import errno
import os
import re

import pytest

from outfall.errors import ConfigurationError, TransientError
from outfall.file.stores.disk import translated_errors as translated_file_errors
from outfall.recovery.location import translated_errors as translated_log_errors


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "quota"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "fs.file-max"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EIO, "check that filesystem"),
    ],
)
def test_each_error_has_its_remedy_for_files_and_for_logs(code: int, remedy: str) -> None:
    with pytest.raises(TransientError) as of_files, translated_file_errors("writing", "/out/a"):
        raise OSError(code, os.strerror(code))
    with pytest.raises(TransientError) as of_logs, translated_log_errors("appending", "sink", "/chk"):
        raise OSError(code, os.strerror(code))
    assert re.search(f"/out/a failed.*{remedy}.*this attempt is discarded", str(of_files.value))
    assert re.search(f"'/chk' failed.*{remedy}.*the next run continues", str(of_logs.value))


@pytest.mark.parametrize(
    ("code", "remedy"), [(errno.EROFS, "mount it for writing"), (errno.EACCES, "owner or mode"), (errno.EPERM, "owner")]
)
def test_a_place_that_cannot_be_written_says_so(code: int, remedy: str) -> None:
    with pytest.raises(TransientError, match=remedy), translated_file_errors("writing", "/out/a"):
        raise OSError(code, os.strerror(code))
    with pytest.raises(ConfigurationError, match="can write"), translated_log_errors("appending", "sink", "/chk"):
        raise OSError(code, os.strerror(code))
