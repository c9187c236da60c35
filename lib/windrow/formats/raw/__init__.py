"""Raw depots: bytes instead of messages; how they come in, and the stage of a microbatch that reads them."""
