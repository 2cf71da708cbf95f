"""Values of registered schemas as columns.

```
by_value        values one by one, and why some cannot be read
avro            Avro: in batches by pyruhvro, or by fastavro, the reference
avro_columns    Arrow types of Avro, and a writer's column as a reader's
avro_bytes      checks values before the reference decodes them
json_schema     JSON by the schema of the reader
protobuf        Protobuf by the message of the reader
```
"""
