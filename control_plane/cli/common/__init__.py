"""What the commands share: options, tables, and ways of changing objects."""
