"""Tables: the rows that filters select, and the values of their cells."""
