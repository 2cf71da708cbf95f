"""Encoding of rows with a registered schema.

```
fitting         columns that fit an Avro schema: checked types, refused values
avro            Avro, by fastavro, or by pyruhvro where its bytes are proven equal
```
"""
