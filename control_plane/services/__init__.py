"""What the control plane does: owns tasks, queues and deadlines; reaches the world only through `ports`."""
