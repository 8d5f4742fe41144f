"""The tools of a service: engine, handles, workers and schedules."""
