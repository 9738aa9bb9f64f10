"""wildtta: test-time adaptation that does not collapse."""
