"""What is planned, as values: profiles, plans, telemetry."""
