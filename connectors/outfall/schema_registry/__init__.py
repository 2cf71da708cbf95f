"""Schemas of Kafka records: a registry with Confluent's API, and values in its wire format.

`RegistryDeserializer` reads such values into columns, with `outfall.spark.deserialize`.

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
deserializer        how to read messages: which registry, which reader's schema
column_reader       a column of messages: the reader's schema on the driver, the writers' schemas in tasks
avro_columns        Arrow types of Avro, and a writer's column as a reader's
avro_reading        decodes the values of one writer's schema
avro_bytes          checks values before the reference decodes them
```
"""

from outfall.schema_registry.deserializer import RegistryDeserializer
from outfall.schema_registry.options import SchemaRegistryOptions

__all__ = ["RegistryDeserializer", "SchemaRegistryOptions"]
