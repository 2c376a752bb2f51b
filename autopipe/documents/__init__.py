"""Documents: the frozen values through which the rooms talk, each with a JSON form."""
