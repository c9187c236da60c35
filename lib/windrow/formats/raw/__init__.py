"""Raw depots: octets instead of messages; how they come in, and the stage of a microbatch that reads them."""
