"""Schemas of Kafka records: a registry with Confluent's API, and values in its wire format.

```
options             how to reach a registry
client              subjects, versions and ids; retries, errors, and a bounded cache
transport           one request: credentials, TLS, proxy, bounded responses
schemas, wire       schemas as values; the first bytes of a message
```
"""

from outfall.errors import require_extra

require_extra("kafka", "fastavro", "urllib3")

from outfall.schema_registry.options import SchemaRegistryOptions

__all__ = ["SchemaRegistryOptions"]
