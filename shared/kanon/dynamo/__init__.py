"""What any table module needs: batches, conditions, limits, capacity units."""
