"""What a deployment costs a month: from a workload to the usage of each service to a bill.

Nothing here calls AWS. ``prices.json`` holds list prices with their date, ``measured.json`` what the project measures
of itself; both can be replaced by files of the same form.
"""
