"""What the sinks for AWS services with requests and responses share, on boto3.

```
errors      the meaning of AWS's errors
client      clients per process, the options of their connections, and renewed credentials
```
"""
