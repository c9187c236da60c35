"""The settings: their defaults, the file `windrow.toml`, its template, and where each value comes from."""
