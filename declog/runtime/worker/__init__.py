"""What runs beside the training thread."""
