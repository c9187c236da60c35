"""Settings: defaults, the file `windrow.toml`, its template, and the origin of each value."""
