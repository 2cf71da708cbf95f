"""Schemas of Kafka records: a registry with Confluent's API, and values in its wire format.

`RegistryDeserializer` reads such values into columns, with `outfall.spark.deserialize`.

```
options             how to reach a registry
writing             values and keys of a writer: which schema, and the encoder for it
subjects            how a sink encodes values or keys: names of subjects, and which of their schemas
avro_schema         Avro's types, and the schema of columns
protobuf_schema     .proto text compiled to descriptors, and the schema of columns
encoding/           rows as messages
decoding/           messages as columns
client              subjects, versions and ids; retries, errors, and a bounded cache
transport           one request: credentials, TLS, proxy, bounded responses
schemas, wire       schemas as values; the first bytes of a message
deserializer        how to read messages: which registry, which reader's schema
column_reader       a column of messages: the reader's schema on the driver, the writers' schemas in tasks
```
"""

from outfall.schema_registry.deserializer import RegistryDeserializer
from outfall.schema_registry.options import SchemaRegistryOptions

__all__ = ["RegistryDeserializer", "SchemaRegistryOptions"]
