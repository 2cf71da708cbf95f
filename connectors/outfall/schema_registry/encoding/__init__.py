"""Encoding of rows with a registered schema.

```
fitting         columns that fit an Avro schema: checked types, refused values
places          where a value is, and its refusal
avro            Avro, by fastavro, or by pyruhvro where its bytes are proven equal
json_schema     JSON with the schema of an object
protobuf        Protobuf, by Google's library
```
"""
