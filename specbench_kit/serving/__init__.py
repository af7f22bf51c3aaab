"""Many edge devices that share one verification server: schedulers, systems, objectives, and a simulator."""
