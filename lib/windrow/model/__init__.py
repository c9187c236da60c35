"""The data model: messages, chunks, batches, rejections, clocks; their columns, schemas, ids and times. Pure."""
