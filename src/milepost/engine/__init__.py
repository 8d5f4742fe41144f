"""What a service uses: engine, handles, workers and schedules."""
