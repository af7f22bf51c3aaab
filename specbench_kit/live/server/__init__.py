"""The verification server: sessions, batches and the stream that every device has."""
