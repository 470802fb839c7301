"""Tasks that need no download: dataset rows in verl's format and their exact rewards."""
