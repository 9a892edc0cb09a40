"""The four tables, one module each. No other code knows the names of attributes.

The modules use DynamoDB's low-level client: its plain dictionaries cost less than the resource layer.
"""
