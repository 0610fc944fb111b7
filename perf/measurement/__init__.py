"""What all scenarios share: options, turns of peers, results with their provenance, reports and figures."""
