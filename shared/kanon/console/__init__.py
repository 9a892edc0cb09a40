"""The page that ``kanon serve`` shows at ``/``: what goes on, a place to try, and one to plan."""
