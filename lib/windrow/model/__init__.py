"""What a message, a batch, a rejection and a clock are: columns, schemas, ids, times. Pure."""
