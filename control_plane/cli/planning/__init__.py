"""Commands that plan a deployment: models' configurations by measurement, and fleets by simulation."""
