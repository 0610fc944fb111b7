"""Proof that no accepted job is lost, whatever dies: jobs handed in while drills kill what computes and keeps them."""
