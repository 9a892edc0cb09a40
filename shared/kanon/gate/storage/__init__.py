"""The four tables, one module each: the only place that knows attribute names.

They take DynamoDB's low-level client: its plain dictionaries cost less than the resource layer.
"""
