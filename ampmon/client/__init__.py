"""What watches a training from within its process: the scaler, the run, and how records leave."""
