"""Two servers compared: records of their answers, and what these show."""
