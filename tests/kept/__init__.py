"""Small tables of the format of a release, kept as files, on which later versions have to go on."""
