"""What drills are carried out on: gateways with their real Tritons, their Redis and their disks."""
