"""Schemas of Kafka records: a registry with Confluent's API, and values in its wire format.

```
options             how to reach a registry
writing             values and keys of a writer: which schema, and the encoder for it
settings            how a sink encodes values or keys
subjects            names of subjects, and which of their schemas
avro_schema         Avro's types, and the schema of columns
encoding/           rows as messages
client              subjects, versions and ids; retries, errors, and a bounded cache
transport           one request: credentials, TLS, proxy, bounded responses
schemas, wire       schemas as values; the first bytes of a message
```
"""

from outfall.schema_registry.options import SchemaRegistryOptions

__all__ = ["SchemaRegistryOptions"]
