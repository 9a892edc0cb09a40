"""The monthly cost of a deployment: from a workload to the usage of each service to a bill.

Nothing here calls AWS. ``prices.json`` holds list prices with their date, ``measured.json`` the project's own
measurements. Both can be replaced by files of the same form.
"""
