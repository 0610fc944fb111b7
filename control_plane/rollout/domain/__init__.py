"""Decisions of rollouts. Pure; `machine` is the state machine, `evidence` feeds the gates, `gate` is one test."""
