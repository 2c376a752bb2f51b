"""Schedules: per rank a list of small immutable actions that simulator, picture, check and executor all read."""
