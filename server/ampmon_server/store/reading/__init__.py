"""What pages and programs read of a scaler."""
