"""The audit: does the mechanism, and does the running service, answer with the distribution claimed for it?"""
