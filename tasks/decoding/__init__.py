"""The heart: runtimes, drafters, rules and the one loop. Needs only torch and transformers."""
