"""The gate's storage on AWS: three tables and a bucket. No other code knows the names of attributes and objects.

The modules use DynamoDB's low-level client: its plain dictionaries cost less than the resource layer.
"""
