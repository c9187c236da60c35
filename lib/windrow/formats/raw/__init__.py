"""Raw depots: chunks of bytes instead of messages, and the stage of a microbatch that turns them into records."""
