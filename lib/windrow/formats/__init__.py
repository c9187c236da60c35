"""Input formats: turn raw bytes, however they were cut into chunks, into records, values and reject reasons."""
