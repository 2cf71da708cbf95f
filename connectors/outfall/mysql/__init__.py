"""MySQL 8 and MariaDB: the recovery log of a step in two tables.

```
recovery     the location of the log, as arguments and as a URL
database     the tables, transactions and errors, for `outfall.sql.log`
connection   connections with TLS, and the classes of the server's errors
```
"""

from __future__ import annotations

from importlib.util import find_spec

from outfall.errors import missing_extra

if find_spec("pymysql") is None:
    raise missing_extra("PyMySQL", "mysql")

from outfall.mysql.recovery import MySQLRecoveryConfig, recovery_from_url

__all__ = ["MySQLRecoveryConfig", "recovery_from_url"]
