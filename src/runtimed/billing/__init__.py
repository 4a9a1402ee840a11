"""What things cost and who may spend: pure, values in and values out."""
