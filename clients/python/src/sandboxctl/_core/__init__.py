"""What the synchronous and the asynchronous client share."""
