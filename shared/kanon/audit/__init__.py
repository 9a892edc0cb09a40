"""The audit: do the answers of the mechanism and of the running service have the claimed distribution?"""
