"""`make test-versions`: a short suite on other versions of Python and Spark than the development's."""
