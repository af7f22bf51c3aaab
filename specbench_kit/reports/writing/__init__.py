"""What every kind of report is written with: documents, tables, figures, numbers and shared sentences."""
