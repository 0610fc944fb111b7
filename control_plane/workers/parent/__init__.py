"""The parent's side of worker processes: starts and watches them, and sends each the state by which it answers."""
