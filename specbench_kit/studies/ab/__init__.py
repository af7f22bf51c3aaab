"""`skit ab`: two running servers compared request by request."""
