"""What a batch is made of: opened data sets or random numbers, as arrays by field. No torch."""
