"""The files of a Delta table on a disk of this machine: its log, what the disk keeps of it, what a power cut left."""
