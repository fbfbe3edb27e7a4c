"""Needed in all rooms: errors, arrays of the caller, progress, threads after a fork, constants of the number contract."""
